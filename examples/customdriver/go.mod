module example.com/customdriver

go 1.26.0

require github.com/golocker/locker v0.0.0

require go.yaml.in/yaml/v3 v3.0.6 // indirect

replace github.com/golocker/locker => ../..
