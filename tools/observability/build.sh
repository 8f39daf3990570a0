#!/bin/sh
# Builds the components that tests/observability runs against, into a cache folder: the collector and Jaeger from their
# Go modules, with the versions in go.mod and the checksums in go.sum. What was built from the same two files is
# kept, so a second call takes no time. Prometheus and promtool come from the distribution's own package
# (`prometheus`, without recommended packages); this script only says whether they are there.
#
#   sh tools/observability/build.sh [--where]    --where prints the folder and builds nothing
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tidegate-observability

if [ "${1:-}" = --where ]; then
    echo "$cache"
    exit 0
fi

missing=
for program in prometheus promtool; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -z "$missing" ] || echo "observability: not found:$missing. Install the package \`prometheus\` of your distribution." >&2

command -v go >/dev/null 2>&1 || {
    echo "observability: there is no go here, so the collector and Jaeger cannot be built." >&2
    exit 1
}

# build NAME FOLDER PACKAGE: unless the same sources were built before.
build() {
    sum=$(cd "$here/$2" && cat go.mod go.sum ./*.go | sha256sum | cut -d' ' -f1)
    if [ -x "$cache/$1" ] && [ "$(cat "$cache/$1.sum" 2>/dev/null)" = "$sum" ]; then
        echo "observability: $1 is built"
        return
    fi
    echo "observability: building $1 (minutes, the first time)"
    (cd "$here/$2" && go build -mod=readonly -trimpath -ldflags '-s -w' -o "$cache/$1.new" "$3")
    mv "$cache/$1.new" "$cache/$1"
    echo "$sum" >"$cache/$1.sum"
}

mkdir -p "$cache"
build otelcol collector .
build jaeger jaeger github.com/jaegertracing/jaeger/cmd/jaeger
