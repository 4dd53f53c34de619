//! The help.

use ratatui::style::Style;

use crate::top::cell::{Row, row};

const TEXT: &str = "
Lines         ↑ ↓ PgUp PgDn Home End  move the cursor, which stays on its line
              s S  sort by another column: pressure, waiting, held, eta …
              r    reverse        /  filter: words, or label=value; Esc drops it
              Enter  look into one   Tab  nodes and shards
In one line   Tab  journal or tokens   n b  next page of it, page before
              o    tokens by number, or as they would be admitted   Esc  back
Everywhere    p    pause     q  quit

PRESS         waiting people per seat: how often all seats must change hands
!             stuck: people wait until somebody acts (paused, quota, no seats …)
F             full: newcomers are refused
G             its gate is shadow or off: nobody is held back
ADM+CHK/OF    seats held and not claimed, in checkout, and all seats in force
IN/S … DONE/S entered, admitted, completed a second, since the last refresh
ETA           the forecast of a newcomer's wait
REFUSED       requests to enter that were refused so far
NEXT DONE ADMITTED ACCEPTS   the four pointers of the first lane (120 columns)";

pub fn rows() -> Vec<Row> {
    TEXT.lines().map(|line| row(line, Style::new())).collect()
}
