#!/bin/sh
# Resolves the pinned requirements anew, for every Python from 3.10 on, with hashes.
# Needs uv and the network. Review the diff: this is what every host will run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."

compile() { # compile OUT ARGS…
  out=$here/$1
  shift
  uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
    --custom-compile-command "provision/volta_provision/pins/update.sh" \
    --output-file "$out" "$@"
}

compile build.txt "$here/build.in"
compile control.txt pyproject.toml --extra provision
# The CPU profile takes its torch from torch-cpu.txt (an index of its own), so torch and
# what its CUDA build would pull in are left out here, and its plain dependencies named.
compile cpu.txt pyproject.toml "$here/torch-needs.in" --extra runtime --excludes "$here/torch.exclude"
compile dev.txt pyproject.toml "$here/torch-needs.in" --extra runtime --extra provision --extra dev \
  --excludes "$here/torch.exclude"
compile v100.txt pyproject.toml "$here/torch-v100.in" --extra runtime
