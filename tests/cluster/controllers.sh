#!/bin/sh
# Builds the controllers that tests/cluster/test_groups.py needs, from the Go proxy: JobSet, Kueue, Kubeflow
# Trainer, LeaderWorkerSet.
#
# Usage: sh tests/cluster/controllers.sh FOLDER
#
# Each becomes FOLDER/<name>/, the context of an image tidegate-test-<name>:dev, with install.yaml, which runs that image:
#   docker build -t tidegate-test-jobset:dev FOLDER/jobset   # or your builder, so that the node has the image
#   kubectl apply --server-side -f FOLDER/jobset/install.yaml
set -eu

folder=${1:?usage: sh tests/cluster/controllers.sh FOLDER}
mkdir -p "$folder"

# name, module, version, package of the program, folder of its manifests, what stands there for the image
controllers='lws sigs.k8s.io/lws v0.7.0 ./cmd config/default us-central1-docker.pkg.dev/k8s-staging-images/lws/lws
jobset sigs.k8s.io/jobset v0.11.1 . config/default us-central1-docker.pkg.dev/k8s-staging-images/jobset/jobset
kueue sigs.k8s.io/kueue v0.17.0 ./cmd/kueue config/default us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue
trainer github.com/kubeflow/trainer/v2 v2.2.0 ./cmd/trainer-controller-manager manifests/overlays/manager ghcr.io/kubeflow/trainer/trainer-controller-manager'

echo "$controllers" | while read -r name module version program manifests image; do
    source=$(cd / && GOFLAGS=-mod=mod go mod download -json "$module@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    out=$folder/$name
    rm -rf "$out"
    mkdir -p "$out"
    CGO_ENABLED=0 go build -C "$source" -trimpath -ldflags '-s -w' -o "$(realpath "$out")/manager" "$program"
    # Kustomize writes nothing, but Trainer's overlay names JobSet by an address of the internet.
    cp -r "$source/${manifests%%/*}" "$out/manifests"
    chmod -R u+w "$out/manifests"
    sed -i '/third-party/d' "$out/manifests/${manifests#*/}/kustomization.yaml"
    # LeaderWorkerSet's two replicas reserve a CPU each, which a small node does not have.
    kubectl kustomize "$out/manifests/${manifests#*/}" |
        sed "s|image: $image.*|image: docker.io/library/tidegate-test-$name:dev|; s|imagePullPolicy: Always|imagePullPolicy: IfNotPresent|; s|cpu: 1$|cpu: 100m|" \
            >"$out/install.yaml"
    rm -rf "$out/manifests"
    printf 'FROM scratch\nCOPY manager /manager\nUSER 65532:65532\nENTRYPOINT ["/manager"]\n' >"$out/Containerfile"
    echo "$name: $out"
done
