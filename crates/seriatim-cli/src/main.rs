//! `seriatim`: the command line.

fn main() {}
