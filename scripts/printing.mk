# What make prints: a line for each folder that it compiles and each file that it links; with V=1 the commands themselves. What a
# compiler has to say is seen in either case.
#
# A recipe begins its commands with $(compiling), $(linking) or, where there is nothing to say, $(Q).

Q := $(if $(filter-out 0,$(V)),,@)
# $(call say,WHAT,OF) says a thing once in a run of make, which expands a recipe before it starts the recipe's first command.
say = $(if $(Q),$(if $(said-$1-$2),,$(eval said-$1-$2 := 1)$(info $1 $2$(if $(SAN), ($(SAN))))))$(Q)
compiling = $(call say,compiling,$(patsubst %/,%,$(dir $<)))
linking = $(call say,linking,$@)
