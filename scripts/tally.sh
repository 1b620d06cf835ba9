# Counts of a run that consists of suites, for the scripts that source this file.
#
# A suite is a command that prints `N passed, N failed` as its last line that starts with a number; gtest's output
# is understood too. A command that fails, is cut off or prints no such line counts as one failure at least, so that
# nothing can go missing silently. A suite that no setup enables this machine to run says `left out here: WHY`, counts none, and succeeds.
# The closing part says what each suite took, and collects what suites `left to make test-all: COUNT WHAT` and `left out here: COUNT (WHY)`.

tally_passed=0
tally_failed=0
tally_failures=()
tally_excerpts=() # logs that hold the words of what failed
tally_times=()    # lines of the closing table
tally_left=()     # what the short length leaves out
tally_out=()      # what is left out since the machine lacks something

tally_pass() { # NAME
    tally_passed=$((tally_passed + 1))
    printf 'ok      %s\n' "$1"
}

tally_fail() { # NAME [WHY]
    tally_failed=$((tally_failed + 1))
    tally_failures+=("$1${2:+: $2}")
    printf 'FAILED  %s%s\n' "$1" "${2:+: $2}"
}

# Prints "PASSED FAILED" for a log, or nothing when it holds no counts.
tally_counts() { # LOG
    awk '
        /^[0-9]+ passed, [0-9]+ failed/ { passed = $1; failed = $3; found = 1 }
        /^\[       OK \] /              { gtest_passed++; gtest = 1 }
        /^\[  FAILED  \] .* \([0-9]+ ms\)$/ { gtest_failed++; gtest = 1 }
        END {
            if (found) print passed + 0, failed + 0
            else if (gtest) print gtest_passed + 0, gtest_failed + 0
        }' "$1"
}

# Prints what a log says was left out here: a suite's line, or gtest's skipped tests.
tally_left_out() { # LOG
    awk '
        /^left out here: / { said = substr($0, 16) }
        / Skipped$/        { getline why }
        /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ { skipped[why]++ }
        END {
            for (why in skipped) said = said (said == "" ? "" : "; ") skipped[why] " (" why ")"
            if (said != "") print said
        }' "$1"
}

# Runs a command, says what it took, and keeps that for the closing table.
tally_timed() { # NAME COMMAND [ARG]...
    local name=$1 began=$SECONDS shell=$BASHPID before status took computed
    shift
    before=$(tally_computed "$shell")
    "$@"
    status=$?
    took=$((SECONDS - began)) computed=$(($(tally_computed "$shell") - before))
    printf '%s took %d s, and %d s of CPU\n' "$name" "$took" "$computed"
    tally_times+=("$(printf '%7d  %6d  %s' "$took" "$computed" "$name")")
    return "$status"
}
# The seconds of CPU of a shell's ended children.
tally_computed() { # PID
    awk -v ticks="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); printf "%d", ($14 + $15) / ticks }' "/proc/$1/stat"
}

# Several suites at a time, each in a shell of its own, whose output is shown when it has ended.
declare -A tally_running=() # by process: the file for its output; beside it what it counted
tally_begin() { # NAME COMMAND [ARG]...: a command of this file's functions
    local out=$tally_logs/${1//[^A-Za-z0-9_.-]/_}.shown
    shift
    mkdir -p "$tally_logs"
    (
        tally_passed=0 tally_failed=0 tally_failures=() tally_excerpts=() tally_times=() tally_left=() tally_out=()
        "$@" >"$out" 2>&1
        declare -p tally_passed tally_failed tally_failures tally_excerpts tally_times tally_left tally_out | sed -E 's/^(declare [^ ]+) tally_/\1 its_/' >"$out.counts"
    ) &
    tally_running[$!]=$out
}
# Waits until at most so many are left.
tally_wait() { # COUNT
    local pid
    while [ ${#tally_running[@]} -gt "$1" ]; do
        for pid in "${!tally_running[@]}"; do
            kill -0 "$pid" 2>/dev/null || tally_add "$pid"
        done
        sleep 0.2
    done
}
tally_add() { # PID
    local out=${tally_running[$1]} its_passed=0 its_failed=0 its_failures=() its_excerpts=() its_times=() its_left=() its_out=()
    unset "tally_running[$1]"
    wait "$1"
    cat "$out"
    if [ ! -s "$out.counts" ]; then
        tally_fail "$(basename "$out" .shown)" "its shell has ended"
        return
    fi
    . "$out.counts"
    tally_passed=$((tally_passed + its_passed)) tally_failed=$((tally_failed + its_failed))
    tally_failures+=(${its_failures[@]+"${its_failures[@]}"}) tally_excerpts+=(${its_excerpts[@]+"${its_excerpts[@]}"})
    tally_times+=(${its_times[@]+"${its_times[@]}"}) tally_left+=(${its_left[@]+"${its_left[@]}"}) tally_out+=(${its_out[@]+"${its_out[@]}"})
    rm -f "$out" "$out.counts"
}
tally_end_all() {
    [ ${#tally_running[@]} -eq 0 ] || kill "${!tally_running[@]}" 2>/dev/null
}

# Runs a suite for at most SECONDS, shows its output as it comes, keeps it in $tally_logs/NAME.log. A signal that ends
# this script ends the suite too, with all of its process group.
tally_suite() { # NAME SECONDS COMMAND [ARG]...
    tally_timed "$1" tally_run "$@"
}
tally_run() { # as tally_suite
    local name=$1 seconds=$2 log status counts left out fifo suite show
    shift 2
    log=$tally_logs/${name//[^A-Za-z0-9_.-]/_}.log
    fifo=$log.fifo
    mkdir -p "$tally_logs"
    rm -f "$fifo"
    mkfifo "$fifo"
    printf '\n== %s\n' "$name"
    tee "$log" <"$fifo" &
    show=$!
    timeout -k 10 "$seconds" "$@" >"$fifo" 2>&1 </dev/null &
    suite=$!
    trap 'kill -TERM "$suite"; wait "$suite"; rm -f "$fifo"; exit 143' INT TERM HUP
    wait "$suite"
    status=$?
    trap - INT TERM HUP
    # What the suite left running may hold its output open; it is not waited for.
    timeout 5 tail --pid="$show" -f /dev/null || kill "$show"
    wait "$show"
    rm -f "$fifo"
    counts=$(tally_counts "$log")
    [ "$status" -eq 0 ] || tally_excerpts+=("$log")
    left=$(sed -n 's/^left to make test-all: //p' "$log" | tail -n 1)
    [ -z "$left" ] || tally_left+=("$left of $name")
    out=$(tally_left_out "$log")
    [ -z "$out" ] || tally_out+=("$name: $out")
    if [ -n "$counts" ]; then
        tally_passed=$((tally_passed + ${counts% *}))
        tally_failed=$((tally_failed + ${counts#* }))
        [ "${counts#* }" -eq 0 ] || tally_failures+=("$name: ${counts#* } failed, see ${log#"$PWD"/}")
    fi
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        tally_fail "$name" "cut off after $seconds s, see ${log#"$PWD"/}"
    elif [ "$status $counts" = "0 0 0" ] && [ -n "$out" ]; then
        :
    elif [ -z "$counts" ] || [ "$counts" = "0 0" ]; then
        tally_fail "$name" "it counted no test (exit status $status), see ${log#"$PWD"/}"
    elif [ "$status" -ne 0 ] && [ "${counts#* }" -eq 0 ]; then
        tally_fail "$name" "exit status $status although no test failed, see ${log#"$PWD"/}"
    fi
}

# What a log says of its failures: its own closing list where it has one, or the begin of each failure's lines.
tally_excerpt() { # LOG
    awk -v each=30 -v most=120 '
        /^Failed:$/ { count = 0; list = 1 }
        list || /FAILED|: Failure$|^(FAIL|ERROR): / { left = each }
        left > 0 && count < most { kept[++count] = substr($0, 1, 400); left-- }
        END { for (i = 1 + (kept[1] == "Failed:"); i <= count; i++) print "    " kept[i] }' "$1"
}

# The closing lines; the status is zero only when something ran and nothing failed. Who sees only the end of a long output
# must find there what failed, and how.
tally_close() {
    local log
    if [ ${#tally_times[@]} -gt 0 ]; then
        printf '\nseconds  of CPU\n'
        printf '%s\n' "${tally_times[@]}" | sort -rn
    fi
    [ ${#tally_left[@]} -eq 0 ] || printf '\nleft to make test-all: %s\n' "$(printf ', %s' "${tally_left[@]}" | cut -c3-)"
    [ ${#tally_out[@]} -eq 0 ] || printf '\nleft out here: %s\n' "$(printf '; %s' "${tally_out[@]}" | cut -c3-)"
    if [ "$tally_failed" -gt 0 ]; then
        printf '\nFailed:\n'
        printf '  %s\n' "${tally_failures[@]}"
        for log in ${tally_excerpts[@]+"${tally_excerpts[@]}"}; do
            printf '  -- %s\n' "${log#"$PWD"/}"
            tally_excerpt "$log"
        done
    fi
    printf '\n%d passed, %d failed\n' "$tally_passed" "$tally_failed"
    [ "$tally_failed" -eq 0 ] && [ "$tally_passed" -gt 0 ]
}
