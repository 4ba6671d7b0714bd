#!/bin/sh
# Verifies this bundle with the tools of the system, before anything of it runs, then installs it:
#   ./install.sh [PUBLIC_KEY_FILE] [options of `install`]
# With a key the signature must be of its owner; minisign is needed for that. README.txt has the
# line that verifies this script itself first.
set -eu

# Nothing of a script that was cut short runs: the shell reads all of this before its last line.
main() {
    here=$(cd "$(dirname "$0")" && pwd)
    case "${1--}" in
    -*) ;;
    *)
        command -v minisign >/dev/null || {
            echo "minisign is not there: install it, or verify SHA256SUMS on a machine that has it" >&2
            exit 69
        }
        minisign -V -q -p "$1" -m "$here/SHA256SUMS" || {
            echo "SHA256SUMS is not what the owner of $1 signed; nothing was installed" >&2
            exit 78
        }
        shift
        ;;
    esac
    # sha256sum passes over some lines that it cannot read.
    if grep -qEv '^[0-9a-f]{64}  [^ ]' "$here/SHA256SUMS"; then
        echo "SHA256SUMS is damaged: fetch it again; nothing was installed" >&2
        exit 78
    fi
    (cd "$here" && sha256sum --quiet --strict -c SHA256SUMS) || {
        echo "this bundle is damaged: fetch the files above again; nothing was installed" >&2
        exit 78
    }
    exec "$here/@NAME@" install "$here" "$@"
}
main "$@"
