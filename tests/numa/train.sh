#!/bin/sh
# In the guest: a small training, plainly and under Ebbtide, has the same bits, and Ebbtide moved some.
# EBBTIDE_RUN has options of `ebbtide run`, parted by commas.
. /disk/environment
export PYTHONDONTWRITEBYTECODE=1 HOME=/root
for folder in dev proc sys; do mount -o bind /$folder /disk/$folder; done
echo "training plainly"
plain=$(chroot /disk "$PYTHON" /train.py) || exit 1
echo "$plain"
echo "training under ebbtide run --fast 50% $EBBTIDE_RUN"
under=$(chroot /disk "$PYTHON" -m ebbtide run --fast 50% --spill /spill --report /report.json $(echo "$EBBTIDE_RUN" | tr , ' ') /train.py) || exit 1
echo "$under"
[ "$plain" = "$under" ] || { echo "other bits under Ebbtide than plainly"; exit 1; }
chroot /disk "$PYTHON" -c '
import json, sys
moved = sum(step["fetched_bytes"]["total"] for step in json.load(open("/report.json"))["steps"])
print(f"training: same bits, {moved} bytes came back")
sys.exit(moved == 0)'
