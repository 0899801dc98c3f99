package file

var BootIDIn = bootIDIn
