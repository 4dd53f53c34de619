//! Records of comma-separated values (RFC 4180), each with the number of its first line.

/// Reads all records; empty lines are passed over.
///
/// # Errors
/// A quotation mark that is not closed, or has something else beside it than a comma or a line's end.
pub fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
    let mut reader = Reader::default();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match (reader.quoted, char) {
            (Some(_), '"') if chars.peek() == Some(&'"') => {
                chars.next();
                reader.field.push('"');
            }
            (Some(_), '"') => {
                reader.quoted = None;
                if !matches!(chars.peek(), None | Some(',' | '\n' | '\r')) {
                    let line = reader.line;
                    return Err(format!("line {line}: something after a closing \""));
                }
            }
            (None, '"') if reader.field.is_empty() => reader.quoted = Some(reader.line),
            (None, '"') => {
                let line = reader.line;
                return Err(format!(
                    "line {line}: a \" within a value without any around it"
                ));
            }
            (None, ',') => reader.end_field(),
            (None, '\r') if chars.peek() == Some(&'\n') => {}
            (None, '\n') => reader.end_record(),
            (_, char) => reader.field.push(char),
        }
        reader.line += usize::from(char == '\n');
    }
    if let Some(line) = reader.quoted {
        return Err(format!("line {line}: a \" that is not closed"));
    }
    reader.end_record();
    Ok(reader.records)
}

struct Reader {
    records: Vec<(usize, Vec<String>)>,
    record: Vec<String>,
    field: String,
    /// The line on which the quotation mark stands that is open.
    quoted: Option<usize>,
    line: usize,
    /// Of the record.
    first_line: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            record: Vec::new(),
            field: String::new(),
            quoted: None,
            line: 1,
            first_line: 1,
        }
    }
}

impl Reader {
    fn end_field(&mut self) {
        self.record.push(std::mem::take(&mut self.field));
    }

    fn end_record(&mut self) {
        if !self.record.is_empty() || !self.field.is_empty() {
            self.end_field();
            let record = std::mem::take(&mut self.record);
            self.records.push((self.first_line, record));
        }
        self.first_line = self.line + 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn quotes_line_ends_and_empty_fields() {
        let text = "key,lane\r\na,\n\n\"b, \"\"c\"\"\nd\",vip\ne,x";
        let read = records(text).unwrap();
        let fields: Vec<(usize, Vec<&str>)> = read
            .iter()
            .map(|(line, record)| (*line, record.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(
            fields,
            [
                (1, vec!["key", "lane"]),
                (2, vec!["a", ""]),
                (4, vec!["b, \"c\"\nd", "vip"]),
                (6, vec!["e", "x"]),
            ]
        );
        assert!(records("").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, wrong) in [
            ("a\n\"b\nc", "line 2: a \" that is not closed"),
            ("a\n\"b\"c", "line 2: something after"),
            ("a\nb\"c", "line 2: a \" within"),
        ] {
            let error = records(text).unwrap_err();
            assert!(error.starts_with(wrong), "{error}");
        }
    }
}
