#!/bin/sh
# The steps of a release that compile nothing; the last sees its key, and needs minisign alone.
#   publish.sh plan TAG                                       refuses a tag that cannot be released
#   publish.sh images TAG DIST OUT                            an image of each program, by podman, in a folder of OUT
#   publish.sh make TAG DIST RELEASE KEY [EXPERIMENTAL...]    one signed folder of those that `cargo xtask dist` left in DIST,
#                                                             notes.md, and assets with a line for each file; what is of
#                                                             those binaries is called experimental in both
set -eu

packaging=$(dirname "$0")
key=$packaging/atlas.pub
fail() {
    echo "$*" >&2
    exit 1
}

tag=$2
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$packaging/../Cargo.toml" | head -n 1)
[ "$tag" = "v$version" ] || fail "the tag is $tag, but Cargo.toml has version $version: tag v$version"
grep -q "^## $version (" "$packaging/CHANGELOG.md" || fail "packaging/CHANGELOG.md does not describe $version"
grep -q '^RW' "$key" || fail "packaging/atlas.pub has no key: packaging/README.md, The key of releases, says how one comes there"
[ "$1" != plan ] || exit 0

dist=$3
if [ "$1" = images ]; then
    mkdir -p "$4/images"
    for package in "$dist"/*/*.deb; do
        folder=${package%/*} arch=${package##*_} machine=x86_64
        binary=${folder##*/} arch=${arch%.deb}
        [ "$arch" = amd64 ] || machine=aarch64
        image=localhost/$binary:$version
        podman build --platform "linux/$arch" --build-arg "MACHINE=$machine-linux-gnu" --build-arg "BINARY=$binary" \
            -t "$image" -f "$packaging/Containerfile" "$folder"
        podman save --format oci-archive -o "$4/images/$binary-$version.oci.tar" "$image"
    done
    cd "$4/images"
    sha256sum -- *.oci.tar > SHA256SUMS
    exit
fi
release=$4 secret=$5
shift 5
mkdir "$release"
for folder in "$dist"/*/; do
    (cd "$folder" && sha256sum --strict --quiet -c SHA256SUMS)
    while read -r _ name; do
        [ ! -e "$release/$name" ] || fail "two targets have a file $name"
        mv "$folder$name" "$release/$name"
    done < "$folder/SHA256SUMS"
    cat "$folder/SHA256SUMS"
done > "$release/SHA256SUMS"
LC_ALL=C sort -k 2 -o "$release/SHA256SUMS" "$release/SHA256SUMS"
minisign -S -s "$secret" -t "Atlas $version" -m "$release/SHA256SUMS" > /dev/null
minisign -V -q -p "$key" -m "$release/SHA256SUMS" || fail "the secret is not that of packaging/atlas.pub"
cp "$key" "$release"

{
    awk -v heading="## $version (" 'index($0, "## ") == 1 { on = index($0, heading) == 1; next } on' "$packaging/CHANGELOG.md"
    [ $# = 0 ] || printf '\n## Experimental\n\nNobody has measured these on their hardware; they are built and checked:\n\n'
    [ $# = 0 ] || printf -- '- `%s`\n' "$@"
} > notes.md
for file in "$release"/*; do
    name=${file##*/} label=
    for binary; do
        case $name in "$binary" | "$binary"[._]* | "$binary-$version"[.]*) label="#$name (experimental)" ;; esac
    done
    echo "$file$label"
done > assets
