//! JSON Schemas of settings in requests, from their table.

use std::borrow::Cow;

use nowserving_line::{
    Admission, Gate, LANES_MAX, NUMBER_MAX, Opening, POSITION_EVENT_MAX, POSITION_EVENTS_MAX,
    Phase, SCHEDULE_MAX, SETTINGS, Setting, SettingDefault, SettingKind,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::Shown;
use super::parts::{ChangeParts, LaneParts, QuotaParts, RateParts};
use crate::wire;

/// The body of `create`.
pub(crate) struct CreateBody;
/// The body of `configure`.
pub(crate) struct ConfigureBody;
/// Settings in another body.
pub(crate) struct SettingsBody;

macro_rules! bodies {
    ($($type:ident: $generator:ident => $schema:expr;)*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

bodies! {
    CreateBody: generator => {
        let required = SETTINGS.iter().filter(|it| it.default == SettingDefault::Required);
        let required: Vec<&str> = required.map(|it| it.name).collect();
        json_schema!({
            "type": "object",
            "properties": properties(generator, |_| true),
            "required": required,
        })
    };
    ConfigureBody: generator => {
        let mut properties = properties(generator, |_| true);
        let condition = |text: &str| json!({
            "description": text,
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": NUMBER_MAX,
        });
        let conditions = [
            ("if_version", condition("Only if the settings have not changed since the line had this version.")),
            ("incarnation", condition("Only if the line has this incarnation.")),
            ("dry_run", json!({
                "description": "Changes nothing: the answer has the settings as they would be.",
                "type": "boolean",
            })),
        ];
        properties.extend(conditions.map(|(name, schema)| (name.to_owned(), schema)));
        json_schema!({"type": "object", "properties": properties})
    };
    SettingsBody: generator => json_schema!({
        "type": "object",
        "properties": properties(generator, |_| true),
        "minProperties": 1,
    });
}

/// What a change of the schedule sets: anything but another schedule.
pub(super) fn scheduled(generator: &mut SchemaGenerator) -> Schema {
    let properties = properties(generator, |kind| kind != SettingKind::Schedule);
    json_schema!({"type": "object", "properties": properties, "minProperties": 1})
}

fn properties(
    generator: &mut SchemaGenerator,
    is_there: impl Fn(SettingKind) -> bool,
) -> Map<String, Value> {
    let settings = SETTINGS.iter().filter(|it| is_there(it.kind));
    settings
        .map(|it| (it.name.to_owned(), property(it, generator)))
        .collect()
}

fn property(setting: &Setting, generator: &mut SchemaGenerator) -> Value {
    let schema = of_kind(setting.kind, generator);
    let (mut schema, null) = match setting.default {
        SettingDefault::Required => (schema, None),
        SettingDefault::Unset(effect) => (or_null(schema), Some(effect)),
        SettingDefault::Value => (or_null(schema), Some("the default")),
    };
    let null = null.map(|null| format!(" Null: {null}."));
    let text = format!("{}.{}", setting.text, null.unwrap_or_default());
    schema.insert("description".to_owned(), text.into());
    if let Some(value) = setting.default_value() {
        schema.insert("default".to_owned(), json!(Shown(&value)));
    }
    schema.into()
}

fn or_null(mut schema: Schema) -> Schema {
    match schema.get("type").cloned() {
        Some(Value::String(of)) if schema.get("enum").is_none() => {
            schema.insert("type".to_owned(), json!([of, "null"]));
            schema
        }
        _ => json_schema!({"anyOf": [schema, {"type": "null"}]}),
    }
}

fn of_kind(kind: SettingKind, generator: &mut SchemaGenerator) -> Schema {
    fn words<const N: usize>(words: [&str; N]) -> Schema {
        json_schema!({"type": "string", "enum": words.as_slice()})
    }
    match kind {
        SettingKind::Number { least, most } | SettingKind::TimeMs { least, most } => {
            json_schema!({"type": "integer", "minimum": least, "maximum": most})
        }
        SettingKind::Flag => json_schema!({"type": "boolean"}),
        SettingKind::Phase => words(Phase::ALL.map(Phase::as_str)),
        SettingKind::Admission => words(Admission::ALL.map(Admission::as_str)),
        SettingKind::Gate => words(Gate::ALL.map(Gate::as_str)),
        SettingKind::Opening => words(Opening::ALL.map(Opening::as_str)),
        SettingKind::Text { most } => json_schema!({
            "type": "string",
            "maxLength": most,
            "pattern": "^[!-~]([ -~]*[!-~])?$",
        }),
        SettingKind::LaneName => wire::Name::json_schema(generator),
        SettingKind::AdmissionRate => generator.subschema_for::<RateParts>(),
        SettingKind::Quota => generator.subschema_for::<QuotaParts>(),
        SettingKind::Lanes => json_schema!({
            "type": "array",
            "items": generator.subschema_for::<LaneParts>(),
            "minItems": 1,
            "maxItems": LANES_MAX,
        }),
        SettingKind::Positions => json_schema!({
            "type": "array",
            "items": {"type": "integer", "minimum": 1, "maximum": POSITION_EVENT_MAX},
            "maxItems": POSITION_EVENTS_MAX,
            "uniqueItems": true,
        }),
        SettingKind::Schedule => json_schema!({
            "type": "array",
            "items": generator.subschema_for::<ChangeParts>(),
            "maxItems": SCHEDULE_MAX,
        }),
        SettingKind::Labels => wire::LabelMap::json_schema(generator),
    }
}
