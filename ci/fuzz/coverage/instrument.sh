#!/bin/sh
# In the place of rustc: has the crates that read what comes from clients tell libFuzzer which code
# an input reaches, by an edge counter for every branch and both sides of comparisons. What they
# call runs as fast as ever, and the fuzzer has fewer counters to look at after each input: with
# all of the tokenizer's and the templates' an input takes several times as long.
#
# Crates for build scripts, which have no fuzzer to tell, are compiled without `--target`.
case "$CARGO_PKG_NAME $*" in
    'atlas '*' --target '* | 'atlas-http '*' --target '* | 'text '*' --target '* | \
        'coverage '*' --target '* | 'llguidance '*' --target '* | 'serde_json '*' --target '*)
        exec "$@" \
            -Cpasses=sancov-module \
            -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
            -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares
        ;;
esac
exec "$@"
