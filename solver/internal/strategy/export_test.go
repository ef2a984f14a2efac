package strategy

// Sample is sample.
var Sample = sample
