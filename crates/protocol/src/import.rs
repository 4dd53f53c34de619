//! `import`: a queue that runs elsewhere goes on in a line. docs/protocol/operators.md.

use nowserving_line::{
    self as line, IMPORT_ID_BYTES_MAX, Imported, LaneName, LineName, Op, Shadow,
};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::key::Key;
use crate::wire;

/// The most `rows` of an `import`.
pub const IMPORT_ROWS_MAX: usize = line::IMPORT_ROWS_MAX;

/// `import`: the next rows of a queue that runs elsewhere enter, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Import {
    /// Names the import: 1 to 64 visible ASCII characters. The line remembers how many rows of the newest one are done.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::id"))]
    pub import_id: String,
    /// How many rows of the import come before these: not more than are done. Those of `rows` that are done are passed
    /// over.
    #[serde(with = "wire::Number")]
    pub first_row: u64,
    /// 1 to [`IMPORT_ROWS_MAX`], the first in the queue first.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = IMPORT_ROWS_MAX)))]
    pub rows: Vec<ImportRow>,
}

/// One who waits in the other queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImportRow {
    /// As for `enter`.
    pub key: Key,
    /// As for `enter`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// When it entered the other queue, in milliseconds since 1970, to be shown; a time to come counts as now.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub entered_at_ms: Option<u64>,
}

impl Import {
    /// The operation; `bad_request` names the field that is wrong.
    pub fn into_op(self, line: LineName) -> Result<Op, ApiError> {
        let id = &self.import_id;
        let fits = (1..=IMPORT_ID_BYTES_MAX).contains(&id.len());
        if !fits || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
            let wrong = "import_id: 1 to 64 visible ASCII characters";
            return Err(ApiError::bad_request(wrong));
        }
        if !(1..=IMPORT_ROWS_MAX).contains(&self.rows.len()) {
            let wrong = format!("rows: 1 to {IMPORT_ROWS_MAX}, not {}", self.rows.len());
            return Err(ApiError::bad_request(wrong));
        }
        let rows = self.rows.into_iter().map(|row| line::ImportRow {
            key: row.key.into_bytes(),
            lane: row.lane,
            entered_at_ms: row.entered_at_ms,
        });
        Ok(Op::Import {
            line,
            import_id: self.import_id.into(),
            first_row: self.first_row,
            rows: rows.collect(),
        })
    }
}

/// How far the line's newest import has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImportedReply {
    /// Its id.
    pub import_id: String,
    /// So many of its first rows are done.
    pub rows: u64,
    /// Of these, rows that got a number; the keys of the others were in the line.
    pub entered: u64,
}

impl From<&Imported> for ImportedReply {
    fn from(imported: &Imported) -> ImportedReply {
        ImportedReply {
            import_id: imported.id.to_string(),
            rows: imported.rows,
            entered: imported.entered,
        }
    }
}

/// What a line has counted since its `gate` was last set to `shadow`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShadowReply {
    /// Tokens admitted.
    pub admitted: u64,
    /// Of these, tokens that were admitted while every seat was held.
    pub held_back: u64,
    /// Of these, tokens that were admitted while `seats` + `queue_limit` were held.
    pub refused: u64,
    /// How many more than `seats` are held now …
    pub over_seats: u64,
    /// … and at most.
    pub over_seats_max: u64,
}

impl ShadowReply {
    /// `None` for a line that has counted nothing and does not count.
    pub(crate) fn new(line: &line::Line) -> Option<ShadowReply> {
        let counted = line.shadow();
        let counts = line.settings().gate == line::Gate::Shadow;
        (counts || counted != Shadow::default()).then(|| ShadowReply {
            admitted: counted.admitted,
            held_back: counted.held_back,
            refused: counted.refused,
            over_seats: line.over_seats(),
            over_seats_max: counted.over_seats_max,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::codec::decode;

    fn read(body: Value) -> Result<Op, String> {
        let import: Import = decode(body.to_string().as_bytes()).map_err(|error| error.message)?;
        let op = import.into_op("shop".try_into().unwrap());
        op.map_err(|error| error.message)
    }

    #[test]
    fn the_most_rows_with_all_their_fields_are_read() {
        let row = |nth: usize| json!({"key": nth.to_string(), "lane": "vip", "entered_at_ms": 7});
        let rows: Vec<_> = (0..IMPORT_ROWS_MAX).map(row).collect();
        assert!(read(json!({"import_id": "old", "first_row": 0, "rows": rows})).is_ok());
    }

    #[test]
    fn rows_become_an_operation() {
        let rows = json!([
            {"key": "a", "lane": "vip", "entered_at_ms": 1_700_000_000_000_u64},
            {"key": "b"},
        ]);
        let op = read(json!({"import_id": "old", "first_row": 5, "rows": rows})).unwrap();
        let Op::Import {
            first_row, rows, ..
        } = op
        else {
            panic!("{op:?}");
        };
        assert_eq!((first_row, rows.len()), (5, 2));
        assert_eq!(rows[0].entered_at_ms, Some(1_700_000_000_000));
        assert_eq!(&*rows[1].key, b"b");
        assert_eq!(rows[1].lane, None);
    }

    #[test]
    fn errors_name_the_field() {
        let row = json!({"key": "a"});
        let many = vec![row.clone(); IMPORT_ROWS_MAX + 1];
        for (body, field) in [
            (
                json!({"import_id": "", "first_row": 0, "rows": [row]}),
                "import_id",
            ),
            (
                json!({"import_id": "a b", "first_row": 0, "rows": [row]}),
                "import_id",
            ),
            (
                json!({"import_id": "a", "first_row": 0, "rows": []}),
                "rows: 1 to 1024",
            ),
            (
                json!({"import_id": "a", "first_row": 0, "rows": many}),
                "rows: 1 to 1024",
            ),
            (json!({"import_id": "a", "rows": [row]}), "first_row"),
            (
                json!({"import_id": "a", "first_row": 0, "rows": [{"key": "a", "color": 1}]}),
                "color",
            ),
        ] {
            let wrong = read(body).unwrap_err();
            assert!(wrong.contains(field), "{field}: {wrong}");
        }
    }
}
