//! What all commands share: the options of every command with the contexts and the connection that they make, answers
//! and errors with their exit codes, values on the command line, tables, progress, signals.

pub mod bar;
pub mod duration;
pub mod global;
pub mod nearest;
pub mod number;
pub mod output;
pub mod progress;
pub mod sheet;
pub mod shell;
pub mod signals;
