# Brings a Python that Ansible can use to a host that has none: EL8 comes with 3.6, a minimal Debian without.
if [ "$(id -u)" != 0 ]; then
  echo "this user may not install packages" >&2
  exit 1
elif command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq -o DPkg::Lock::Timeout=300 update &&
    apt-get -qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends install python3
elif command -v dnf >/dev/null; then
  dnf -q -y install python3.11
else
  echo "neither apt-get nor dnf is here" >&2
  exit 1
fi
