#!/bin/sh
# In the guest: a small training has the same bits plainly and under Ebbtide with a tier on node 1, where the bytes of
# that tier lie at every look, and nowhere else.
. /disk/environment
unset EBBTIDE_DISK EBBTIDE_SPILL EBBTIDE_TESTS EBBTIDE_STRESS_OPERATIONS
export PYTHONDONTWRITEBYTECODE=1 HOME=/root
for folder in dev proc sys; do mount -o bind /$folder /disk/$folder; done
python() { chroot /disk "$PYTHON" "$@"; }

python -m ebbtide doctor | grep -A 2 NUMA
for refused in numa:7:8MiB numa:1:900GiB; do
  python -m ebbtide run --tier $refused --spill /spill /train.py && { echo "training: $refused was not refused"; exit 1; }
done
echo "training plainly"
plain=$(python /train.py) || exit 1
echo "$plain"
run="run --fast 50% --tier numa:1:8MiB --wait-for-plan --spill /spill --report /report.json"
echo "training under ebbtide $run"
export NUMA_SAMPLES=/samples.json
under=$(python -m ebbtide $run /train.py) || exit 1
echo "$under"
[ "$plain" = "$under" ] || { echo "training: other bits under Ebbtide than plainly"; exit 1; }
python /check.py
status=$?
for folder in dev proc sys; do umount /disk/$folder; done
exit $status
