# Functions for all scripts: finding Rust, installing Debian packages. To be sourced, not run.

# The oldest minor version of Rust that builds the workspace: rust-version in Cargo.toml.
RUST_MINOR_MIN=85

# The folders of mke2fs, losetup and similar programs, which are not on every user's path.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
export CARGO_NET_RETRY=10

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Runs a command as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -- "$@"
    else
        die "this needs root, or sudo: $*"
    fi
}

# Runs a command up to three times, since package servers fail at times.
retry() {
    local attempt
    for attempt in 1 2 3; do
        "$@" && return 0
        say "attempt $attempt failed: $*"
        sleep $((attempt * 5))
    done
    return 1
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet \
        -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

APT_LISTS_FRESH=
# Fetches the package lists, once in each run.
refresh_lists() {
    [ -n "$APT_LISTS_FRESH" ] && return 0
    command -v apt-get >/dev/null || die "apt-get is missing; install these packages by hand: $*"
    retry apt_get update || die "apt-get update failed"
    APT_LISTS_FRESH=1
}

# Installs Debian packages.
install_packages() {
    [ $# -gt 0 ] || return 0
    refresh_lists "$@"
    say "installing: $*"
    retry apt_get install --yes --no-install-recommends "$@" || die "could not install: $*"
}

# Prints the minor version of Rust of a cargo, or 0.
cargo_minor() {
    local version
    version=$("$1" --version 2>/dev/null </dev/null) || version=
    [[ $version =~ ^cargo\ 1\.([0-9]+)\. ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

# Puts the folder of a cargo that is recent enough first on the path. Fails if there is none.
use_rust() {
    local cargo
    while read -r cargo; do
        [ -x "$cargo" ] && [ "$(cargo_minor "$cargo")" -ge "$RUST_MINOR_MIN" ] || continue
        PATH="$(dirname "$cargo"):$PATH"
        export PATH
        return 0
    done < <(type -ap cargo; echo "${CARGO_HOME:-$HOME/.cargo}/bin/cargo"; echo /usr/bin/cargo)
    return 1
}
use_rust || true
