package virtual

const RaceEnabled = raceEnabled
