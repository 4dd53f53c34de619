//! `nowserving limit pictures`: how each algorithm lets the same requests through.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use nowserving_rehearse::{LimitRow, limit_pictures, limit_rows};

use nowserving_terminal::output::Output;
use nowserving_terminal::sheet;

/// Draws how each algorithm lets a burst through, and says how many passed.
///
/// The same requests against limits of 60 a minute, in virtual time, on the code that nodes run. Needs no cluster.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  nowserving limit pictures ./pictures")]
pub struct PicturesArgs {
    /// Where the SVG files are written; made if it is not there. Without it, only the numbers are shown.
    dir: Option<PathBuf>,
}

/// Draws, and shows the numbers.
///
/// # Errors
/// A file cannot be written.
pub fn run(args: &PicturesArgs, output: &Output) -> anyhow::Result<()> {
    if let Some(dir) = &args.dir {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for picture in limit_pictures()? {
            let path = dir.join(picture.file);
            let shown = path.display();
            fs::write(&path, picture.svg).with_context(|| format!("cannot write {shown}"))?;
            eprintln!("wrote {shown}");
        }
    }
    output.answer(&limit_rows()?, |rows| {
        let cells = rows.iter().map(LimitRow::cells).collect();
        sheet::plain(LimitRow::HEADER, cells, output)
    })
}
