//! Programs, opened connections and servers in one process, with no sandbox around them.

mod answered;
mod carried;
mod ended;
mod fuzz;
mod guarded;
mod hinted;
mod renewed;
mod spared;
mod turned;
mod world;
