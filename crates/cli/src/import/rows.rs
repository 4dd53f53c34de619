//! The rows of a queue as a file has them: CSV with a header, or one JSON object a line.

use std::collections::HashMap;

use clap::ValueEnum;
use nowserving_client::{ImportRow, Key, LaneName};
use nowserving_protocol::time;
use serde_json::{Map, Value};

use super::csv;

const FIELDS: [&str; 4] = ["key", "entered_at", "lane", "state"];

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowFormat {
    /// Comma-separated values, the names of the columns on the first line.
    Csv,
    /// One JSON object a line.
    Jsonl,
}

/// One who waits, or has a seat, in the other queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// Of the file.
    pub line: usize,
    pub row: ImportRow,
    has_seat: bool,
}

impl RowFormat {
    /// By the end of a file's name.
    pub fn of(name: &str) -> Option<RowFormat> {
        match name.rsplit_once('.')?.1 {
            "csv" => Some(RowFormat::Csv),
            "jsonl" | "ndjson" => Some(RowFormat::Jsonl),
            _ => None,
        }
    }

    /// The rows in the order in which they shall enter: those that have a seat in the other queue first, else as in the
    /// file.
    ///
    /// # Errors
    /// The line and the field that are wrong.
    pub fn read(self, text: &str) -> Result<Vec<Row>, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut rows = match self {
            RowFormat::Csv => from_csv(text)?,
            RowFormat::Jsonl => from_json_lines(text)?,
        };
        check_keys(&rows)?;
        rows.sort_by_key(|row| !row.has_seat);
        Ok(rows)
    }
}

/// Each key is there once.
fn check_keys(rows: &[Row]) -> Result<(), String> {
    let mut lines = HashMap::new();
    for row in rows {
        if let Some(before) = lines.insert(row.row.key.as_bytes(), row.line) {
            return Err(format!("line {}: key: as on line {before}", row.line));
        }
    }
    Ok(())
}

fn from_csv(text: &str) -> Result<Vec<Row>, String> {
    let mut records = csv::records(text)?.into_iter();
    let (line, header) = records.next().ok_or("line 1: no header")?;
    let header: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
    for (place, name) in header.iter().enumerate() {
        check_field(line, name)?;
        if header[..place].contains(name) {
            return Err(format!("line {line}: {name}: twice"));
        }
    }
    records
        .map(|(line, record)| {
            if record.len() != header.len() {
                let (has, wants) = (record.len(), header.len());
                return Err(format!("line {line}: {has} values, and {wants} columns"));
            }
            let values = header.iter().zip(record);
            // Spaces around a key are a part of it: a backend asks by the very same one.
            let values = values.map(|(name, value)| match name.as_str() {
                "key" => ("key", value),
                name => (name, value.trim().to_owned()),
            });
            row(line, &values.collect())
        })
        .collect()
}

fn from_json_lines(text: &str) -> Result<Vec<Row>, String> {
    let lines = (1..).zip(text.lines());
    let lines = lines.filter(|(_, text)| !text.trim().is_empty());
    lines
        .map(|(line, text)| {
            let object: Map<String, Value> =
                serde_json::from_str(text).map_err(|error| format!("line {line}: {error}"))?;
            let mut values = HashMap::new();
            for (name, value) in &object {
                check_field(line, name)?;
                let value = match value {
                    Value::Null => continue,
                    Value::String(text) => text.clone(),
                    Value::Number(number) if name == "entered_at" => number.to_string(),
                    _ => return Err(format!("line {line}: {name}: a string")),
                };
                values.insert(name.as_str(), value);
            }
            row(line, &values)
        })
        .collect()
}

fn check_field(line: usize, name: &str) -> Result<(), String> {
    match FIELDS.contains(&name) {
        true => Ok(()),
        false => Err(format!(
            "line {line}: {name:?} is not one of {}",
            FIELDS.join(", ")
        )),
    }
}

fn row(line: usize, values: &HashMap<&str, String>) -> Result<Row, String> {
    let wrong = |field: &str, what: &str| format!("line {line}: {field}: {what}");
    let value = |field: &str| {
        let value = values.get(field).map(String::as_str);
        value.filter(|value| !value.is_empty())
    };
    let key = value("key").ok_or_else(|| wrong("key", "required"))?;
    let key = Key::new(key.as_bytes()).map_err(|error| format!("line {line}: {}", error.message));
    let lane = value("lane").map(|lane| {
        let lane = LaneName::try_from(lane);
        lane.map_err(|error| wrong("lane", &error.to_string()))
    });
    let entered_at_ms = value("entered_at").map(|text| {
        let limit = "milliseconds since 1970, or a time as 2026-11-22T12:00:00+08:00";
        entered_at(text).ok_or_else(|| wrong("entered_at", limit))
    });
    let has_seat = match value("state") {
        None | Some("waiting") => false,
        Some("admitted" | "in_checkout") => true,
        Some(_) => return Err(wrong("state", "waiting, admitted or in_checkout")),
    };
    Ok(Row {
        line,
        row: ImportRow {
            key: key?,
            lane: lane.transpose()?,
            entered_at_ms: entered_at_ms.transpose()?,
        },
        has_seat,
    })
}

fn entered_at(text: &str) -> Option<u64> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok().filter(|ms| *ms < 1 << 53),
        false => time::parse(text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn keys(rows: &[Row]) -> Vec<&[u8]> {
        rows.iter().map(|row| row.row.key.as_bytes()).collect()
    }

    #[test]
    fn both_forms_are_read_and_seats_come_first() {
        let csv = "key,state,entered_at,lane\n\
                   a,waiting,1700000000000,\n\
                   b,in_checkout,2023-11-14T22:13:20Z,vip\n\
                   \"c,1\",,,\n";
        let json = "{\"key\":\"a\",\"entered_at\":1700000000000}\n\n\
                    {\"key\":\"b\",\"state\":\"in_checkout\",\"lane\":\"vip\",\
                     \"entered_at\":\"2023-11-14T22:13:20Z\"}\n\
                    {\"key\":\"c,1\",\"lane\":null}\n";
        for (format, text) in [(RowFormat::Csv, csv), (RowFormat::Jsonl, json)] {
            let rows = format.read(text).unwrap();
            assert_eq!(keys(&rows), [&b"b"[..], b"a", b"c,1"]);
            assert_eq!(rows[0].row.entered_at_ms, Some(1_700_000_000_000));
            assert_eq!(rows[1].row.entered_at_ms, Some(1_700_000_000_000));
            assert_eq!(rows[0].row.lane.as_ref().map(LaneName::as_str), Some("vip"));
            assert_eq!(
                (&rows[2].row.lane, rows[2].row.entered_at_ms),
                (&None, None)
            );
        }
        assert_eq!(RowFormat::of("queue.csv"), Some(RowFormat::Csv));
        assert_eq!(RowFormat::of("/a.b/queue.jsonl"), Some(RowFormat::Jsonl));
        assert_eq!(RowFormat::of("queue"), None);
    }

    #[test]
    fn fuzz_a_file() {
        let seeds = [
            "key,lane,entered_at\na,\"v, \"\"i\"\" p\",1700000000000\nb,,\n",
            "{\"key\":\"a\",\"entered_at\":1700000000000}\n{\"key\":\"b\",\"lane\":\"vip\"}\n",
        ];
        let seeds = seeds.map(|text| text.as_bytes().to_vec());
        nowserving_testkit::target!(seeds.into(), |bytes| {
            let text = String::from_utf8_lossy(bytes);
            for format in [RowFormat::Csv, RowFormat::Jsonl] {
                drop(format.read(&text));
            }
        });
    }

    #[test]
    fn errors_name_the_line_and_the_field() {
        for (text, wrong) in [
            ("", "line 1: no header"),
            ("key,colour\na,red", "line 1: \"colour\" is not one of"),
            ("key,key\na,b", "line 1: key: twice"),
            ("lane\nvip", "line 2: key: required"),
            ("key,lane\na,vip\nb", "line 3: 1 values, and 2 columns"),
            ("key,lane\na,v i p", "line 2: lane: "),
            ("key,entered_at\na,noon", "line 2: entered_at: "),
            ("key,state\na,gone", "line 2: state: "),
            ("key\na\nb\na", "line 4: key: as on line 2"),
        ] {
            let error = RowFormat::Csv.read(text).unwrap_err();
            assert!(error.starts_with(wrong), "{wrong}: {error}");
        }
        for (text, wrong) in [
            ("{\"key\":1}", "line 1: key: a string"),
            ("{\"key\":\"a\"}\nb", "line 2: "),
            ("{\"key\":\"a\",\"color\":1}", "line 1: \"color\" is not"),
        ] {
            let error = RowFormat::Jsonl.read(text).unwrap_err();
            assert!(error.starts_with(wrong), "{wrong}: {error}");
        }
    }
}
