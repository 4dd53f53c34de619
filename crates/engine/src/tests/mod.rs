#![allow(clippy::unwrap_used)]

mod clocks;
mod group;
mod rig;
mod rules;
mod standing;
