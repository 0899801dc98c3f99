#!/bin/sh
# Three machines whose clocks differ come to the same tick of cron. One of them runs the job. See README.md.
key=cron:report:$(date +%s)

machine() { # name, by how many seconds its clock is behind
	sleep "$2"
	locker run --key "$key" --tick 1m --quiet -- \
		sh -c 'echo "machine $1: the report is written, with token $LOCKER_FENCE"' sh "$1"
	echo "machine $1: exit code $?"
}

until [ "$(date +%S)" -lt 40 ]; do sleep 1; done # the same tick for all
machine A 0 &
machine B 0.5 &
machine C 1 &
wait
