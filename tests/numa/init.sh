#!/bin/sh
# The guest's first process: mounts what is there, runs the native tests of NUMA tiers, and switches the machine off. The
# host reads the last line. What it calls is busybox's, which lies in /bin.
export PATH=/bin EBBTIDE_SPILL=/disk EBBTIDE_DISK=/disk
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
mount -t ext4 /dev/vda /disk && mount -t tmpfs tmp /tmp || EBBTIDE_SPILL=/tmp

for node in /sys/devices/system/node/node[0-9]*; do
  echo "$(basename "$node"): CPUs [$(cat "$node/cpulist")], $(sed -n 's/.*MemTotal: *//p' "$node/meminfo"), distances $(cat "$node/distance")"
done
for word in $(cat /proc/cmdline); do
  case $word in EBBTIDE_*=*) export "$word" ;; esac
done
/tests.bin "$EBBTIDE_TESTS"
status=$?
if [ "$status" = 0 ] && [ -x /disk/train.sh ]; then
  /disk/train.sh
  status=$?
fi
echo "numa-test: exit $status"
umount /disk
poweroff -f
