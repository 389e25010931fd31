# The other scripts source this one. It fetches Debian packages and unpacks them into a directory
# of the user, beside the system. It needs apt and dpkg-deb, but no root: apt works on a separate
# state without installed packages, so it resolves every dependency. No package script ever
# runs.
#
# Signatures: apt checks the archive's signature with the system's Debian keyring, and each
# package against the signed lists. trixie and its backports are signed by the keys of
# Debian 12 too, so the keyring of any Debian 12 will do.
# shellcheck shell=sh

suite=trixie
cache=${DXPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dxpu}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
me=$(basename "$0")

say() { printf '%s: %s\n' "$me" "$*" >&2; }

# fail CODE MESSAGE... Code 3 means: not available on this machine, continue without it.
fail() {
	code=$1
	shift
	say "$@"
	exit "$code"
}

# begin NAME: makes $tmp, which is removed at exit, and allows one run of NAME at a time.
begin() {
	mkdir -p "$cache" || fail 3 "cannot write to $cache; set DXPU_CACHE to a directory that you can write to"
	command -v flock >/dev/null || fail 3 "flock is missing (package util-linux)"
	exec 9>"$cache/.lock-$1"
	if ! flock -n 9; then
		say "waiting for another run to finish"
		flock 9
	fi
	rm -rf "$cache/.tmp-$1".* # of a run that was killed
	tmp=$(mktemp -d "$cache/.tmp-$1.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

# mirrors: the machine's own mirrors of Debian, then the public one.
mirrors() {
	{
		for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
			[ ! -r "$f" ] || sed -n 's/^deb  *\(\[[^]]*\] *\)*\(http[^ ]*\) .*/\2/p' "$f"
		done
		for f in /etc/apt/sources.list.d/*.sources; do
			[ ! -r "$f" ] || sed -n 's/^URIs: *//p' "$f" | tr ' ' '\n'
		done
		echo http://deb.debian.org/debian
	} | sed -n 's#^\(https\{0,1\}://.*/debian\)/*$#\1#p' | awk '!seen[$0]++'
}

# apt_begin MIRROR: a state for apt below $cache/apt. The caller holds the apt lock.
apt_begin() {
	apt=$cache/apt
	mkdir -p "$apt/state/lists/partial" "$apt/cache" "$apt/etc/parts" "$apt/etc/preferences.d" "$apt/etc/trusted.gpg.d"
	: >"$apt/status"
	for s in $suite $suite-backports; do
		echo "deb [signed-by=$keyring arch=amd64] $1 $s main"
	done >"$apt/etc/sources.list"
	cat >"$apt/apt.conf" <<-EOF
		Dir::State "$apt/state";
		Dir::State::status "$apt/status";
		Dir::Cache "$apt/cache";
		Dir::Etc "$apt/etc";
		Dir::Etc::parts "parts";
		Dir::Etc::netrc "/etc/apt/auth.conf";
		Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
		APT::Architecture "amd64";
		APT::Architectures { "amd64"; };
		APT::Install-Recommends "false";
		APT::Sandbox::User "$(id -un)"; // the user _apt may not write below a home directory
		APT::Update::Error-Mode "any";
		Acquire::Languages "none";
		Acquire::http::Timeout "8";
		Acquire::https::Timeout "8";
		Acquire::Retries "1";
	EOF
	# The machine's way to the network (proxies, certificates) and its policy on dates hold for us too.
	env -u APT_CONFIG apt-config dump 2>/dev/null |
		grep -E '^Acquire::(http|https|ForceIPv[46]|Check-)[^ ]* "[^"]' |
		grep -v '::Timeout ' >>"$apt/apt.conf" || true
	export APT_CONFIG="$apt/apt.conf"
}

apt_run() {
	if ! "$@" >>"$tmp/apt.log" 2>&1; then
		echo "failed: $*" >>"$tmp/apt.log"
		return 1
	fi
}

# apt_end removes apt's index of its lists, which is larger than QEMU and can be made again.
apt_end() {
	rm -f "$apt"/cache/*.bin
	exec 8>&-
}

# fetch DIRECTORY PLAN: calls PLAN, a function that downloads packages into the current
# directory by apt_run, for each mirror until it succeeds.
fetch() {
	for tool in apt-get apt-cache apt-config dpkg-deb; do
		command -v $tool >/dev/null || fail 3 "$tool is missing: this needs Debian or a relative of it"
	done
	[ -r $keyring ] || fail 3 "$keyring is missing; remedy: apt-get install debian-archive-keyring"
	exec 8>"$cache/.lock-apt"
	flock 8
	for mirror in $(mirrors); do
		apt_begin "$mirror"
		say "fetching the package lists of $suite from $mirror"
		: >"$tmp/apt.log"
		# Lists of the last hour will do, if they are of this mirror and suite.
		if [ "$(cat "$apt/stamp" 2>/dev/null)" = "$mirror $suite" ] && [ -n "$(find "$apt/stamp" -mmin -60)" ] &&
			(cd "$1" && "$2"); then
			apt_end
			return
		fi
		if apt_run apt-get -q update && echo "$mirror $suite" >"$apt/stamp" && (cd "$1" && "$2"); then
			apt_end
			return
		fi
		sed -n 's/^[EW]: /  apt: &/p; /^failed: /s/^/  /p' "$tmp/apt.log" | tail -n 5 >&2
		say "$mirror did not serve"
	done
	fail 3 "cannot fetch Debian packages: is there a way to the network? Proxies are taken from apt's configuration and from http_proxy."
}

# download PACKAGES AND OPTIONS...: with all their dependencies, into the current directory.
download() {
	mkdir -p partial
	apt_run apt-get -q -y -o Dir::Cache::archives="$PWD" install --download-only "$@"
}

# unpack DEBS TREE: unpacks all packages of a directory, one per processor at a time.
unpack() {
	mkdir -p "$2"
	say "unpacking $(find "$1" -name '*.deb' | wc -l) packages ($(du -sm "$1" | cut -f1) MB)"
	find "$1" -name '*.deb' -print0 | xargs -0 -P "$(nproc)" -I '{}' dpkg-deb -x '{}' "$2"
}
