//! What a result must be like.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Fails with what is wrong if the value does not match.
pub fn check(matcher: &Value, value: &Value, at: &str) -> Result<()> {
    match matcher {
        Value::Object(fields) if fields.keys().any(|name| name.starts_with('$')) => {
            let mut signs = fields.iter();
            signs.try_for_each(|(sign, expected)| {
                let holds = holds(sign, expected, value)?;
                ensure!(holds, "{at}: {value}, expected {sign} {expected}");
                Ok(())
            })
        }
        Value::Object(fields) => {
            ensure!(value.is_object(), "{at}: {value} is no object");
            let mut fields = fields.iter();
            fields.try_for_each(|(name, part)| check(part, &value[name], &format!("{at}.{name}")))
        }
        Value::Array(parts) => {
            let values = value.as_array().filter(|it| it.len() == parts.len());
            let values = values.with_context(|| format!("{at}: {value} is no such list"))?;
            let mut pairs = (0..).zip(parts.iter().zip(values));
            pairs.try_for_each(|(nth, (part, value))| check(part, value, &format!("{at}[{nth}]")))
        }
        plain => {
            ensure!(plain == value, "{at}: {value}, expected {plain}");
            Ok(())
        }
    }
}

fn holds(sign: &str, expected: &Value, value: &Value) -> Result<bool> {
    let numbers = value.as_f64().zip(expected.as_f64());
    Ok(match sign {
        "$missing" => expected.as_bool() == Some(value.is_null()),
        "$at_least" => numbers.is_some_and(|(value, least)| value >= least),
        "$at_most" => numbers.is_some_and(|(value, most)| value <= most),
        "$contains" => {
            let part = expected.as_str().context("$contains takes a text")?;
            value.as_str().is_some_and(|text| text.contains(part))
        }
        "$is" => match expected.as_str() {
            Some("text") => value.is_string(),
            Some("number") => value.is_number(),
            _ => bail!("$is takes text or number, not {expected}"),
        },
        "$not" => check(expected, value, "").is_err(),
        "$any" => {
            let each = expected.as_array().context("$any takes a list")?;
            each.iter().any(|it| check(it, value, "").is_ok())
        }
        _ => bail!("no matcher {sign}"),
    })
}
