module example.com/custombackend

go 1.26.0

require github.com/golocker/locker v0.0.0

replace github.com/golocker/locker => ../..
