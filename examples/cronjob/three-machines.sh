#!/bin/sh
# Three machines whose clocks differ come to the same tick of cron. One of them runs the job. See README.md.
key=cron:report:$(date +%s)

machine() { # name, by how many seconds its clock is behind
	sleep "$2"
	locker run --key "$key" --wait 0 --min-hold 1m --quiet -- \
		sh -c 'echo "machine $1: the report is written, with token $LOCKER_FENCE"' sh "$1"
	echo "machine $1: exit code $?"
}

machine A 0 &
machine B 0.5 &
machine C 1 &
wait
