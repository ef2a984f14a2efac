#!/bin/bash
# Makes sure that what the tests of the torch backend need is on this machine: a
# Python with torch, and Slurm. Installs Debian's packages where they are
# missing and this is root on Debian (about 250 MB); says what to do elsewhere.
set -euo pipefail

has_torch() {
  local python
  for python in "${EVENKEEL_PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$python" ] && "$python" -I -c 'import torch' 2>/dev/null; then
      return 0
    fi
  done
  return 1
}

# Debian's torch multiplies matrices with whatever BLAS there is, and with nothing else
# installed that is the reference implementation, tens of times slower than others.
has_blas() {
  ! dpkg -s python3-torch >/dev/null 2>&1 || [[ "$(readlink -f /usr/lib/*/libblas.so.3)" != */blas/libblas.so* ]]
}

has_slurm() {
  PATH="$PATH:/usr/sbin:/sbin"
  command -v srun >/dev/null && command -v slurmctld >/dev/null && command -v munged >/dev/null
}

wanted=()
has_torch || wanted+=(python3-torch)
has_torch && has_blas || wanted+=(libopenblas0-pthread)
has_slurm || wanted+=(slurm-wlm munge)
if [ ${#wanted[@]} -eq 0 ]; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "the tests of the torch backend need: ${wanted[*]} (Debian's names; as root: apt-get install --no-install-recommends ${wanted[*]})" >&2
  exit 1
fi
echo "installing ${wanted[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
apt-get install -q -y --no-install-recommends "${wanted[@]}" >&2
has_torch || { echo "python3-torch was installed, but no interpreter can import it" >&2; exit 1; }
