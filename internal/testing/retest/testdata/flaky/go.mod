module flaky

go 1.25
