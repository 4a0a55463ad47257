// Members of a case line as all its parts read them: words of tables, and what may be absent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/read/json_message.h"
#include "data/read/json_reader.h"
#include "estimator/plan/measurement.h"
#include "estimator/plan/plan.h"

namespace shardplan {

inline constexpr std::int64_t kMaxDegree = std::int64_t{1} << 20;  // of anything parallel

inline std::string place_of(const JsonValue& value, const std::string& file) {
  return place(file, value.line, value.pointer);
}

// There and not null.
inline bool is_given(const ObjectReader& reader, std::string_view key) {
  return reader.has(key) && !reader.is_null(key);
}

// A word of the table of Value.
template <class Value>
Value choice(ObjectReader& reader, std::string_view key) {
  const std::string word = reader.string(key);
  if (const std::optional<Value> value = value_of<Value>(word)) {
    return *value;
  }
  const std::vector<std::string> names = words_of(names_of(Value{}));
  throw reader.error(key, "found \"" + shown(word, Encoding::kUtf8) + "\", expected one of " +
                              joined(names) + suggestion(word, names));
}

template <class Value>
Value choice_or(ObjectReader& reader, std::string_view key, Value fallback) {
  if (is_given(reader, key)) {
    return choice<Value>(reader, key);
  }
  reader.ignore(key);
  return fallback;
}

}  // namespace shardplan
