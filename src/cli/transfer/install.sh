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
    # A pipe would be waited for, and a link leads out of the folder.
    odd=$(find "$here/." ! -type f ! -type d | head -n 1)
    [ -z "$odd" ] || {
        echo "$odd: is neither a file nor a folder; nothing was installed" >&2
        exit 78
    }
    # sha256sum passes over some lines that it cannot read. Paths lead to something in this folder:
    # no part of them is empty, . or .., and none has a control character.
    part='([^./]|[.][^./]|[.][.][^/])[^/]*'
    bad=$(tr '\000' '\001' <"$here/SHA256SUMS" | LC_ALL=C grep -nvE "^[0-9a-f]{64}  $part(/$part)*\$" | head -n 1)
    [ -n "$bad" ] ||
        bad=$(tr '\000' '\001' <"$here/SHA256SUMS" | LC_ALL=C grep -n '[[:cntrl:]]' | head -n 1)
    [ -z "$bad" ] || {
        echo "SHA256SUMS: line ${bad%%:*} is not a digest, two spaces and a path in this folder;" \
            "nothing was installed" >&2
        exit 78
    }
    (cd "$here" && sha256sum --quiet --strict -c SHA256SUMS) || {
        echo "this bundle is damaged: fetch the files above again; nothing was installed" >&2
        exit 78
    }
    exec "$here/@NAME@" install "$here" "$@"
}
main "$@"
