# make            builds build/bin/castor and build/lib/libcastor.so
# make setup      installs what is missing to build and run: a compiler, and .venv with torch; make setup-tests: to test
# make demo       plain PyTorch, DDP and Castor side by side on real text
# make test       every suite; SAN=address|undefined|thread: the unit tests with that sanitizer
# make test-all   everything, with every combination: hours (docs/testing.md)
# make test-torch VERSION=2.10.0   what depends on PyTorch, on that version of it
# make check      format, static analysis, tables and links of the pages
# make tables     writes the pages' tables from the tables in the code and the results of bench
# make simulation the simulated devices of castor rehearse, which `make` builds where there are CUDA's headers; make sim: for the tests
# make fuzz       libFuzzer on the readers of traces, the report and the options, FUZZ_SECONDS (60) each; needs clang
# make aarch64    the same bits from the kernels for AArch64, under emulation; needs a cross compiler and qemu
# make gpu-test   what docs/gpu.md asks a machine with a GPU to show, in 9 minutes; result in bench/results/gpu-test.json
# make gpu-bench  training under budgets of a GPU's memory, and what the driver's calls cost, in 9 minutes
# make bench      the benchmarks (long); results in bench/results
# make wheel      dist/castor-VERSION-py3-none-PLATFORM.whl, for pip install
# make install    into PREFIX (/usr/local), below DESTDIR for packagers; make uninstall removes it
#
# PYTHON=path uses an environment that has torch; nothing is downloaded then. V=1 prints the commands.

CC ?= gcc
CXX ?= g++
PREFIX ?= /usr/local
SAN ?=
TORCH_VERSION ?= 2.11.0
PYTHON ?= $(CURDIR)/.venv/bin/python
include scripts/printing.mk

B := build$(if $(SAN),-$(SAN))
# A compiler that nobody has tried may warn of what the tried ones do not: that must not end a user's build.
TRIED_COMPILER := $(filter 12 12.%,$(shell $(CC) -dumpversion 2>/dev/null))
WARN := -Wall -Wextra $(if $(TRIED_COMPILER),-Werror)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
# Roots are instructions, not calls of libm, which the library does not need.
# With a sanitizer, more optimization and more than the lines' numbers would double the compiler's time; its warnings are
# judged in the plain build.
OPTIMIZE := $(if $(SAN),-O1 -g1 -w,-O2 -g)
CFLAGS_ALL := -std=gnu11 -D_GNU_SOURCE $(OPTIMIZE) -fno-math-errno $(WARN) -Wvla -fPIC -fvisibility=hidden -pthread -I. -Iinterpose $(SANFLAGS) $(CFLAGS)
# Sums must round as PyTorch's do: no fused multiply-add but where it is written, and loops that may use wide registers.
KERNEL_CFLAGS := -O3 -ffp-contract=off

VERSION_H := interpose/base/version.h
VERSION := $(shell sed -n 's/^.define CASTOR_VERSION "\(.*\)"/\1/p' $(VERSION_H))
SONAME := $(shell sed -n 's/^.define CASTOR_SONAME "\(.*\)"/\1/p' $(VERSION_H))

LIB_C := $(wildcard interpose/*.c interpose/*/*.c interpose/*/*/*.c kernels/*.c)
LIB_O := $(LIB_C:%.c=$(B)/obj/%.o) $(B)/obj/kernels/cuda/image.o
# The CUDA kernels are data of the library, and need nothing of CUDA where it runs without them. NVCC= builds without them.
# Where there is no toolkit, the nvcc of `make setup-tests` lies beside PYTHON's torch.
ifeq ($(origin NVCC),undefined)
NVCC := $(shell command -v nvcc || ls "$$(dirname "$(PYTHON)")"/../lib/python3*/site-packages/nvidia/cu13/bin/nvcc 2>/dev/null | head -n 1)
endif
NVCC_ARCHITECTURES ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
LAUNCHER_C := $(wildcard launcher/*.c launcher/*/*.c)
LAUNCHER_INTERPOSE := arena/pages base/error base/file_bytes base/log base/machine base/process base/thread events/held job/begin job/cluster job/ends \
	job/meeting job/options job/plugin job/words parallel/mesh parallel/pipeline parallel/rank_lists parallel/stages placement/chunk placement/chunk_manager placement/chunk_room \
	placement/chunk_search placement/chunk_statistics placement/moments placement/placement placement/prefetch placement/victims
LAUNCHER_O := $(LAUNCHER_C:%.c=$(B)/obj/%.o) $(LAUNCHER_INTERPOSE:%=$(B)/obj/interpose/%.o)
# The tests' own code is built once for all builds but that for ThreadSanitizer, which must see their atomics.
UNIT_B := $(if $(filter thread,$(SAN)),$(B),build)
# Which unit tests, by folder and name: UNIT="store/* nodes/nodes".
UNIT ?= */* */*/*
UNIT_CC := $(wildcard tests/unit/support/*.cc) $(wildcard $(UNIT:%=tests/unit/%_test.cc))
UNIT_C := $(wildcard tests/support/*.c tests/unit/support/*.c)
UNIT_O := $(UNIT_CC:%.cc=$(UNIT_B)/obj/%.o) $(UNIT_C:%.c=$(B)/obj/%.o)
# The unit tests link the library's modules, but not its replacements of libc's functions nor its constructor;
# tests/unit/support/store_inside.c stands in for what the exported functions need of them.
UNIT_LIB_O := $(filter-out $(B)/obj/interpose/hooks/%.o $(B)/obj/interpose/api/collectives_exports.o $(B)/obj/interpose/api/device_exports.o $(B)/obj/interpose/api/device_steps_exports.o $(B)/obj/interpose/start.o,$(LIB_O)) $(filter-out $(B)/obj/launcher/main.o,$(LAUNCHER_C:%.c=$(B)/obj/%.o))

.PHONY: all objects setup setup-tests setup-tests-system demo aarch64 test test-all test-torch check bench gpu-test gpu-bench install uninstall wheel clean unit semantics tables simulation sim fuzz
all: $(B)/bin/castor $(B)/lib/libcastor.so $(B)/lib/castor $(if $(SAN),,simulation)
# What needs a compiler alone, and can be made while `make setup-tests` downloads the rest.
objects: $(filter-out %/image.o,$(LIB_O)) $(LAUNCHER_O) $(UNIT_O)

$(B)/obj/kernels/%.o: kernels/%.c
	@mkdir -p $(@D)
	$(compiling)$(CC) $(CFLAGS_ALL) $(KERNEL_CFLAGS) -MMD -MP -c $< -o $@
# Another nvcc, or none, makes another image.
$(B)/obj/kernels/cuda/nvcc: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCC_ARCHITECTURES)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_ARCHITECTURES)' >$@
.PHONY: FORCE
$(B)/obj/kernels/cuda/kernels.fatbin: kernels/cuda/kernels.cu $(B)/obj/kernels/cuda/nvcc
	$(compiling)"$(NVCC)" -std=c++17 -O3 $(NVCC_ARCHITECTURES) -fatbin -MD -MP -MF $(@:.fatbin=.d) -o $@ $<
$(B)/obj/kernels/cuda/image.o: kernels/cuda/image.S $(B)/obj/kernels/cuda/nvcc $(if $(NVCC),$(B)/obj/kernels/cuda/kernels.fatbin)
	$(if $(NVCC),,@echo 'no nvcc: libcastor.so is built without the CUDA kernels (NVCC=PATH names one)')
	$(compiling)$(CC) $(if $(NVCC),-DIMAGE='"$(B)/obj/kernels/cuda/kernels.fatbin"') -c $< -o $@
# C++ exceptions pass through the wrappers, and their clean-up must run.
$(B)/obj/interpose/hooks/%.o: CFLAGS_ALL += -fexceptions
# AddressSanitizer's runtime looks up libc's functions, by these, before the memory is there that instrumented code needs.
BEFORE_ASAN_C := $(wildcard interpose/hooks/*.c $(patsubst %,interpose/hooks/%/*.c,lookup process table torch))
$(BEFORE_ASAN_C:%.c=$(B)/obj/%.o): CFLAGS_ALL += $(if $(findstring address,$(SAN)),-fno-sanitize=address)
# Python's arithmetic, to the bit.
$(patsubst %,$(B)/obj/interpose/%.o,training/annealing parallel/mesh parallel/spec_path): CFLAGS_ALL += -ffp-contract=off
$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(compiling)$(CC) $(CFLAGS_ALL) -MMD -MP -c $< -o $@
# The tests' own code is not optimized: with the sanitizers that takes four times as long to compile as it does to run. Their
# headers are compiled once.
UNIT_CXX := $(CXX) -std=gnu++17 -O0 -g1 $(WARN) -pthread -I. -Iinterpose $(if $(filter thread,$(SAN)),$(SANFLAGS))
$(UNIT_B)/obj/unit.h.gch:
	@mkdir -p $(@D)
	@echo '#include <gtest/gtest.h>' >$(UNIT_B)/obj/unit.h
	$(call say,compiling,$@)$(UNIT_CXX) -x c++-header $(UNIT_B)/obj/unit.h -o $@
$(UNIT_B)/obj/%.o: %.cc $(UNIT_B)/obj/unit.h.gch
	@mkdir -p $(@D)
	$(compiling)$(UNIT_CXX) -include $(UNIT_B)/obj/unit.h -MMD -MP -c $< -o $@

$(B)/lib/libcastor.so.$(VERSION): $(LIB_O)
	@mkdir -p $(@D)
	$(linking)$(CC) -shared -pthread $(SANFLAGS) -Wl,-soname,$(SONAME) -Wl,-z,defs -Wl,-z,now -o $@ $^ -ldl
$(B)/lib/libcastor.so: $(B)/lib/libcastor.so.$(VERSION)
	$(Q)ln -sfn $(<F) $(@D)/$(SONAME)
	$(Q)ln -sfn $(SONAME) $@
# The Python part lies as it does when it is installed, alone in its folder: on PYTHONPATH, a folder beside it would be
# a package of that name. Its distribution has a name of its own, so that none in the user's environment hides the entry point.
$(B)/lib/castor: $(VERSION_H) shims/entry_points.txt
	$(Q)rm -rf $@
	@mkdir -p $@/castor_agent-$(VERSION).dist-info
	$(Q)ln -sfn "$$(realpath --relative-to=$@ shims/castor)" $@/castor
	$(Q)ln -sfn "$$(realpath --relative-to=$@ shims/castor_agent.py)" $@/castor_agent.py
	$(Q)cp shims/entry_points.txt $@/castor_agent-$(VERSION).dist-info/
	$(Q)printf 'Metadata-Version: 2.1\nName: castor-agent\nVersion: %s\n' $(VERSION) >$@/castor_agent-$(VERSION).dist-info/METADATA
$(B)/bin/castor: $(LAUNCHER_O)
	@mkdir -p $(@D)
	$(linking)$(CC) -pthread $(SANFLAGS) -o $@ $^
# One hash for each way of calling the kernels (scripts/aarch64).
$(B)/bin/kernel-bits: $(B)/obj/tests/aarch64/bits.o $(filter $(B)/obj/kernels/%,$(LIB_O))
	@mkdir -p $(@D)
	$(linking)$(CC) -pthread $(SANFLAGS) -o $@ $^
$(B)/bin/castor-unit: $(UNIT_O) $(UNIT_LIB_O)
	@mkdir -p $(@D)
	$(linking)$(CXX) -pthread $(SANFLAGS) -o $@ $^ -lgtest -lgtest_main -ldl
$(B)/bin/bench-kernels: bench/kernel_loops.c $(B)/obj/kernels/scale.o $(B)/obj/kernels/variant.o
	@mkdir -p $(@D)
	$(linking)$(CC) $(CFLAGS_ALL) -o $@ $^
# Its step is to wait for memory, not for arithmetic.
$(B)/obj/bench/disk/disk.o: CFLAGS_ALL += -O3
$(B)/bin/bench-disk: $(B)/obj/bench/disk/disk.o $(patsubst %,$(B)/obj/interpose/%.o,disk/calls disk/queue arena/pages base/error events/held base/log base/thread)
	@mkdir -p $(@D)
	$(linking)$(CC) -pthread $(SANFLAGS) -o $@ $^
# Replays recorded moments through the chunk manager; bench/policy.
$(B)/bin/replay-moments: $(B)/obj/bench/policy/replay.o $(B)/obj/launcher/plan/replay.o $(B)/obj/interpose/arena/pages.o $(patsubst %,$(B)/obj/interpose/placement/%.o,chunk chunk_manager chunk_room chunk_statistics moments placement prefetch victims) $(patsubst %,$(B)/obj/interpose/%.o,base/error base/file_bytes events/held base/log base/thread)
	@mkdir -p $(@D)
	$(linking)$(CC) -pthread $(SANFLAGS) -o $@ $^
# Decisions per second of interpose/parallel; bench/parallel.
$(B)/bin/bench-parallel: $(B)/obj/bench/parallel/decisions.o $(patsubst %.c,$(B)/obj/%.o,$(wildcard interpose/parallel/*.c) $(patsubst %,interpose/base/%.c,error log thread))
	@mkdir -p $(@D)
	$(linking)$(CC) -pthread $(SANFLAGS) -o $@ $^
.PHONY: tools
tools: $(B)/bin/make-trace
# Makes traces for the tests of `castor report` and for bench/report.
$(B)/bin/make-trace: $(B)/obj/bench/report/generate.o $(patsubst %.c,$(B)/obj/%.o,$(filter-out interpose/trace/refusal.c,$(wildcard interpose/trace/*.c)) interpose/base/log.c interpose/base/process.c interpose/base/thread.c)
	@mkdir -p $(@D)
	$(linking)$(CC) -pthread $(SANFLAGS) -o $@ $^

setup setup-tests setup-tests-system:
	$(Q)scripts/setup $(if $(filter setup-tests%,$@),--tests) $(if $(filter %-system,$@),--system) "$(PYTHON)" "$(TORCH_VERSION)"
unit: $(B)/bin/castor-unit
	$(B)/bin/castor-unit
# The scripts call make themselves, with flags of their own.
test test-all:
	@MAKE="$(MAKE)" PYTHON="$(PYTHON)" SAN="$(SAN)" SUITES="$(SUITES)" TEST_LENGTH=$(if $(filter test-all,$@),all,short) scripts/test
test-torch:
	@MAKE="$(MAKE)" scripts/test-torch "$(VERSION)"
check:
	@MAKE="$(MAKE)" B="$(B)" CC="$(CC)" scripts/check
aarch64:
	@MAKE="$(MAKE)" B="$(B)" scripts/aarch64
# Users' machines need no headers of CUDA: they get what was built from them.
simulation:
	@$(MAKE) --no-print-directory -f simulation/Makefile B="$(B)" PYTHON="$(PYTHON)" WARN="$(WARN)" OPTIONAL=1
# With the programs that test them; after `simulation`, so that two makes never build one file.
sim: simulation
	@$(MAKE) --no-print-directory -f tests/sim/Makefile B="$(B)" PYTHON="$(PYTHON)" WARN="$(WARN)"
# Each target with a corpus that it makes itself and that grows from run to run; what it finds lies in build/fuzz.
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 60
FUZZ_CFLAGS := -std=gnu11 -D_GNU_SOURCE -O1 -g $(WARN) -I. -Iinterpose -pthread -fno-omit-frame-pointer \
	-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
FUZZ_TARGETS := trace_fuzz report_fuzz options_fuzz
FUZZ_LAUNCHER_O := $(patsubst %.c,$(B)/fuzz/obj/%.o,$(filter-out launcher/main.c,$(LAUNCHER_C)) \
	$(wildcard $(patsubst %,interpose/%/*.c,base job events parallel placement)) interpose/arena/pages.c interpose/hooks/table/hook_table.c)
$(B)/fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	$(compiling)$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c $< -o $@
$(B)/fuzz/%_fuzz: $(B)/fuzz/obj/tests/fuzz/%_fuzz.o $(FUZZ_LAUNCHER_O)
	$(linking)$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer -o $@ $^
.SECONDARY: $(FUZZ_TARGETS:%=$(B)/fuzz/obj/tests/fuzz/%.o) $(FUZZ_LAUNCHER_O)
fuzz: $(FUZZ_TARGETS:%=$(B)/fuzz/%)
	@B="$(B)" SECONDS_EACH="$(FUZZ_SECONDS)" scripts/fuzz $(FUZZ_TARGETS)
# The compiler comes first; Castor is compiled while torch is downloaded. The clock is read before all of it, when make expands this.
demo:
	@scripts/setup --system "$(PYTHON)" "$(TORCH_VERSION)"
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j2) setup all
	@scripts/demo "$(PYTHON)" $(shell date +%s.%N)
bench: setup all
	bench/gpt_cpu/run.py --python "$(PYTHON)"
# GPU_FLAGS="--only 7B": some checks alone.
gpu-test: all
	bench/gpu/run.py --python "$(PYTHON)" $(GPU_FLAGS)
gpu-bench: all
	bench/gpu/bench.py --python "$(PYTHON)" $(GPU_FLAGS)
tables: $(B)/bin/castor
	@B="$(B)" scripts/tables
clean:
	rm -rf build build-*

INSTALL_ARGUMENTS = "$(B)" "$(DESTDIR)$(PREFIX)" "$(PREFIX)" $(VERSION) $(SONAME)
install: all
	@scripts/install $(INSTALL_ARGUMENTS)
uninstall:
	@scripts/install --remove $(INSTALL_ARGUMENTS)
wheel: all
	@scripts/wheel "$(PYTHON)" dist

# The page of `castor report --format html` is part of the program.
$(B)/obj/launcher/report/report_command.o $(B)/fuzz/obj/launcher/report/report_command.o: $(wildcard launcher/report/page/*)
# The launcher suggests names as the options do, and prints the table of hooks.
$(B)/bin/castor: $(B)/obj/interpose/base/nearest.o $(B)/obj/interpose/job/signature.o $(B)/obj/interpose/hooks/table/hook_table.o
$(B)/bin/castor-unit: $(B)/obj/interpose/hooks/table/hook_table.o $(B)/obj/interpose/hooks/table/effect.o $(B)/obj/interpose/hooks/cuda/layouts.o $(B)/obj/interpose/hooks/cuda/overflow.o

-include $(shell find $(sort $(B)/obj $(UNIT_B)/obj) -name '*.d' 2>/dev/null)
