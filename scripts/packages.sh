# Functions that install packages as root with apt or, if that is impossible, print one line that names the
# package. Source this file; do not run it.

fail() {
  echo "setup: $*" >&2
  exit 1
}

install_package() { # PACKAGE, WHAT FOR
  if ! command -v apt-get >/dev/null; then
    fail "$2 is missing; install it (on Debian or Ubuntu: the package $1) and run this again"
  fi
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || fail "$2 is missing; install it with: sudo apt-get install $1"
    root=(sudo)
  fi
  echo "setup: installing $1 ($2 is missing)"
  "${root[@]}" apt-get update -qq >/dev/null || true
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "$1" >/dev/null ||
    fail "apt-get could not install $1; install $2 another way and run this again"
}
