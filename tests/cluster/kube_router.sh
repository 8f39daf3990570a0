#!/bin/sh
# Builds kube-router from the Go proxy: it enforces network policies where a cluster's own plugin does not.
#
# Usage: sh tests/cluster/kube_router.sh FOLDER
#
# FOLDER becomes the context of an image, whose name the test takes:
#   docker build -t tidegate-test-kube-router:dev -f FOLDER/Containerfile FOLDER   # or your builder
#   TIDEGATE_E2E_POLICY_IMAGE=tidegate-test-kube-router:dev
set -eu

folder=${1:?usage: sh tests/cluster/kube_router.sh FOLDER}
mkdir -p "$folder"
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
module=github.com/cloudnativelabs/kube-router/v2
source=$(cd / && GOFLAGS=-mod=mod go mod download -json "$module@v2.1.0" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
CGO_ENABLED=0 go build -C "$source" -trimpath -ldflags '-s -w' -o "$(realpath "$folder")/kube-router" ./cmd/kube-router
cp "$here/kube-router.Containerfile" "$folder/Containerfile"
echo "kube-router: $folder"
