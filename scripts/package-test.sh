#!/bin/bash
# Usage: package-test.sh DIST
#
# Installs the Debian packages of a release on three machines and runs the commands of
# docs/install.md there, from package to first lease; then upgrades, removes and purges the
# packages. A machine is a copy of a Debian system (debootstrap) in a network namespace of
# its own. There is no systemd in it: a program in its place starts the services as their
# units say. Needs root, debootstrap, overlayfs and network namespaces.
#
# Exit status: 3 if this machine cannot do that.
set -euo pipefail
dist=$(realpath "$1")
cd "$(dirname "$0")/.."
me=package-test
cannot() { echo "$me: $*" >&2; exit 3; }
[ "$(id -u)" = 0 ] || cannot "needs root"
for tool in debootstrap ip unshare chroot dpkg-deb; do
	command -v $tool >/dev/null || cannot "$tool is not installed; remedy: apt-get install debootstrap iproute2 util-linux"
done
[ "$(dpkg --print-architecture)" = amd64 ] || cannot "the page's commands name the packages for amd64"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/dxpu/debian-bookworm
if [ ! -e "$cache/etc/debian_version" ]; then
	echo "$me: making a Debian system in $cache"
	rm -rf "$cache.new"
	mkdir -p "$cache.new"
	debootstrap --variant=minbase --include=init-system-helpers,iproute2,procps bookworm "$cache.new" \
		"${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$cache.log" 2>&1 || cannot "debootstrap failed: $(tail -n 1 "$cache.log")"
	mv "$cache.new" "$cache"
fi

work=$(mktemp -d)
machines="manager box host"
declare -A address=([manager]=10.0.0.1 [box]=10.0.0.2 [host]=10.0.0.3) name=([manager]=m1 [box]=b1 [host]=h1)
prefix=dxpu-pt$$
clean() {
	set +e
	for m in $machines; do
		for pid in "$work/$m/root/run/units/"*.pid; do
			[ ! -e "$pid" ] || kill -KILL "$(cat "$pid")" 2>/dev/null
		done
		ip netns pids "$prefix-$m" 2>/dev/null | xargs -r kill -KILL
		umount "$work/$m/root/proc" "$work/$m/root/dev" 2>/dev/null
		umount "$work/$m/root" 2>/dev/null
		ip netns del "$prefix-$m" 2>/dev/null
	done
	ip netns del "$prefix-switch" 2>/dev/null
	rm -rf "$work"
}
trap clean EXIT

# The network: a bridge in a namespace of its own, so that nothing of this machine changes.
ip netns add "$prefix-switch"
ip -n "$prefix-switch" link add br0 type bridge
ip -n "$prefix-switch" link set br0 up
for m in $machines; do
	ip netns add "$prefix-$m"
	ip -n "$prefix-$m" link set lo up
	ip -n "$prefix-$m" link add eth0 type veth peer name "$m" netns "$prefix-switch"
	ip -n "$prefix-switch" link set "$m" master br0 up
	ip -n "$prefix-$m" addr add "${address[$m]}/24" dev eth0
	ip -n "$prefix-$m" link set eth0 up

	mkdir -p "$work/$m/upper" "$work/$m/work" "$work/$m/root"
	mount -t overlay overlay -o "lowerdir=$cache,upperdir=$work/$m/upper,workdir=$work/$m/work" "$work/$m/root" || cannot "overlayfs is not available"
	mount -t proc proc "$work/$m/root/proc"
	mount --bind /dev "$work/$m/root/dev"
	mkdir -p "$work/$m/root/root/packages" "$work/$m/root/run/units"
	cp "$dist"/dxpu-*_amd64.deb "$work/$m/root/root/packages/"
	echo "${name[$m]}" >"$work/$m/root/etc/hostname"
	install -m 0755 scripts/package-test/systemctl "$work/$m/root/usr/local/bin/systemctl"
	# scp copies from the file system of the other machine.
	printf '#!/bin/bash\nexec /usr/local/bin/copy "$@"\n' >"$work/$m/root/usr/local/bin/scp"
	mkdir -p "$work/$m/root/mnt/manager"
	cat >"$work/$m/root/usr/local/bin/copy" <<-'EOF'
		#!/bin/bash
		# scp root@10.0.0.1:FILE... DIRECTORY
		set -e
		for f in "${@:1:$#-1}"; do cp "/mnt/manager/$(basename "${f#*:}")" "${!#}"; done
	EOF
	chmod 0755 "$work/$m/root/usr/local/bin/scp" "$work/$m/root/usr/local/bin/copy"
done

# on MACHINE COMMANDS: runs a script as root on a machine.
on() {
	ip netns exec "$prefix-$1" unshare --uts --mount --ipc bash -c '
		hostname "$1"
		exec env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
			chroot "$2" bash -euc "cd /root/packages; $3"
	' bash "${name[$1]}" "$work/$1/root" "$2"
}

# await MACHINE COMMAND: waits up to a minute until it succeeds.
await() {
	for _ in $(seq 300); do
		! on "$1" "$2" >/dev/null 2>&1 || return 0
		sleep 0.2
	done
	echo "$me: on $1: \"$2\" never succeeded" >&2
	on "$1" "$2" || true
	tail -n 20 "$work"/*/root/run/units/*.log >&2
	return 1
}

# The blocks of the page, each after a line that names its machine.
awk -v dir="$work" '
	/^<!-- machine: / { machine = $3; next }
	/^```sh$/ && machine != "" { n++; file = sprintf("%s/block-%02d-%s", dir, n, machine); next }
	/^```$/ { file = ""; machine = "" }
	file != "" { print > file }
' docs/install.md

for block in "$work"/block-*; do
	m=${block##*-}
	echo "== $m"
	sed 's/^/   $ /' "$block"
	# Files that the manager writes once it leads.
	if grep -q -e scp -e 'context set' "$block"; then
		await manager 'test -s /var/lib/dxpu-manager/ca.crt -a -s /var/lib/dxpu-manager/admin-token'
		for f in ca.crt join-token; do
			cp "$work/manager/root/var/lib/dxpu-manager/$f" "$work/$m/root/mnt/manager/"
		done
	fi
	on "$m" "$(cat "$block")" || { echo "$me: the block of $m failed" >&2; tail -n 20 "$work"/*/root/run/units/*.log >&2; exit 1; }
done

echo "== upgrade, removal and purge"
for m in $machines; do
	on "$m" "dpkg -i dxpu-client_*.deb dxpu-${m}_*.deb >/dev/null"
done
await manager 'dxpu get pool | grep -q "boxes   1 of 1 connected"'
for m in box host manager; do
	case $m in host) unit=dxpu-host@vm1 ;; *) unit=dxpu-$m ;; esac
	on "$m" "grep -q ^DXPU_FLAGS= /etc/dxpu/$m.env
		systemctl stop $unit
		dpkg --remove dxpu-$m >/dev/null
		test -e /etc/dxpu/$m.env # a removal keeps the settings
		dpkg --purge dxpu-$m >/dev/null
		test ! -e /etc/dxpu/$m.env
		! ls -d /var/lib/dxpu-$m* 2>/dev/null
		dxpu version
		test -e /usr/share/man/man1/dxpu-get-gpus.1.gz"
	left=$(ip netns pids "$prefix-$m" | paste -sd,)
	[ -z "$left" ] || { echo "$me: on $m these go on after the removal: $(ps -o args= -p "$left")" >&2; exit 1; }
done
echo "$me: ok"
