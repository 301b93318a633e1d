# Functions for all scripts: finding Rust, installing and unpacking Debian packages. To be sourced, not run.

# The oldest minor version of Rust that builds the workspace: rust-version in Cargo.toml.
RUST_MINOR_MIN=87

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

# Fails with the names of what is missing if this user cannot install packages.
require_installer() { # MISSING...
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
        die "these packages are missing, and installing them needs root or sudo: $*"
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
    require_installer "$@"
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

# Prints the Debian mirror of apt's configuration.
configured_mirror() {
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk '$1 == "Debian" && $2 !~ /security/ && !found { print $2; found = 1 }'
}

# Makes a separate apt state in the new folder WORK for the SUITES of the configured mirror, so that the machine's
# sources and packages do not change. PURPOSE says in messages what the packages are for. They are for the
# ARCHITECTURE, amd64 by default.
start_private_apt() { # WORK SUITES PURPOSE [ARCHITECTURE]
    local mirror suite keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    PRIVATE_APT=$1
    PRIVATE_APT_ARCHITECTURE=${4:-amd64}
    rm -rf "$1"
    mkdir -p "$1"/{state/lists/partial,cache/archives/partial,unpacked}
    mirror=$(configured_mirror)
    if [ -z "$mirror" ]; then
        # The mirror is known once apt has fetched its lists.
        refresh_lists "$3"
        mirror=$(configured_mirror)
    fi
    [ -n "$mirror" ] || die "apt has no Debian mirror, from which $3 would be fetched"
    [ -e $keyring ] || install_packages debian-archive-keyring
    for suite in $2; do
        printf 'deb [signed-by=%s] %s %s main\n' $keyring "${mirror%/}" "$suite"
    done >"$1/sources.list"
    retry private_apt apt-get update || die "cannot read $2 from $mirror"
}

# Runs an apt command on the state of start_private_apt.
private_apt() { # COMMAND...
    local tool=$1
    shift
    "$tool" --quiet --quiet -o Acquire::Retries=3 -o APT::Sandbox::User=root \
        -o APT::Architecture="$PRIVATE_APT_ARCHITECTURE" -o APT::Architectures="$PRIVATE_APT_ARCHITECTURE" \
        -o Dir::Etc::SourceList="$PRIVATE_APT/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State="$PRIVATE_APT/state" -o Dir::State::status=/dev/null \
        -o Dir::Cache="$PRIVATE_APT/cache" "$@"
}

# Unpacks Debian packages to the folder `unpacked` of the private apt state.
unpack_packages() { # PACKAGE...
    local package
    (cd "$PRIVATE_APT" && retry private_apt apt-get download "$@") || die "cannot download $*"
    for package in "$PRIVATE_APT"/*.deb; do
        dpkg-deb --extract "$package" "$PRIVATE_APT/unpacked"
    done
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

# The newest cargo-deny that the oldest supported Rust can build.
DENY_VERSION=0.18.3

# Puts cargo-deny first on the path. Builds it if it is missing. To be called in the folder of the workspace.
build_deny() {
    local tools=$PWD/.cache/tools
    if ! "$tools/bin/cargo-deny" --version 2>/dev/null | grep -qF " $DENY_VERSION"; then
        say "building cargo-deny, which takes some minutes the first time"
        cargo install --quiet --locked --root "$tools" --version "$DENY_VERSION" cargo-deny
    fi
    export PATH="$tools/bin:$PATH"
}
