//! Tables for people.

use comfy_table::{Attribute, Cell, CellAlignment, Table, TableStyle, presets};

use crate::output::Output;

/// A table in the one style of this program: numbers to the right. Styles of cells are dropped where
/// there are no colours.
pub struct Sheet(Table);

/// Rows of plain words under a header.
pub fn plain(header: &str, rows: Vec<Vec<String>>, output: &Output) -> String {
    let mut sheet = Sheet::new(header, output);
    for row in rows {
        sheet.row(row.into_iter().map(Cell::new).collect());
    }
    sheet.text()
}

impl Sheet {
    /// `header`: the names of the columns, with `, ` between them.
    pub fn new(header: &str, output: &Output) -> Sheet {
        let mut sheet = Sheet::styled(presets::UTF8_BORDERS_ONLY, output);
        let bold = |text| Cell::new(text).add_attribute(Attribute::Bold);
        sheet.0.set_header(header.split(", ").map(bold));
        sheet
    }

    /// Names and values, without a header.
    pub fn pairs(output: &Output) -> Sheet {
        Sheet::styled(presets::NOTHING, output)
    }

    fn styled(style: TableStyle, output: &Output) -> Sheet {
        let mut table = Table::new();
        // Whether stdout may be coloured is decided by `Output`, for all output alike.
        table.load_style(style).force_no_tty();
        if output.colour {
            table.enforce_styling();
        }
        Sheet(table)
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.0.add_row(cells);
    }

    /// One of [`Sheet::pairs`].
    pub fn pair(&mut self, name: &str, value: impl ToString) {
        self.row(vec![Cell::new(name), Cell::new(value)]);
    }

    /// As [`Sheet::pair`], if there is a value.
    pub fn optional(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.pair(name, value);
        }
    }

    /// As it is printed.
    pub fn text(self) -> String {
        self.0.trim_fmt()
    }
}

/// A cell at the right of its column.
pub fn number(value: impl ToString) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}
