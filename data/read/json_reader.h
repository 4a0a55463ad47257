// The one strict JSON reader. Everything that is unknown, missing, duplicate, narrowed, out of
// range or too deep is an InputError of the form `file:line: /pointer: found X, expected Y`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/input_error.h"

namespace shardplan {

inline constexpr std::int64_t kMaxJsonDepth = 64;
inline constexpr std::int64_t kMaxJsonBytes = std::int64_t{64} << 20;
inline constexpr std::int64_t kMaxJsonTokens = 2'000'000;

enum class JsonKind { kNull, kBool, kInteger, kReal, kString, kArray, kObject };

struct JsonMember;

// A parsed value that knows where it stood in the text.
struct JsonValue {
  JsonKind kind = JsonKind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;  // also set for integers
  std::string string;
  std::vector<JsonValue> items;     // array
  std::vector<JsonMember> members;  // object, in order, keys unique
  std::string pointer;              // "/plan/tp"
  std::int64_t line = 1;
};

// Not a std::pair: clang cannot complete one whose second half contains it.
struct JsonMember {
  std::string name;
  JsonValue value;
};

// `file` is the name that messages carry; `first_line` is where the text stands in it (one line of
// a JSON-lines file). Throws InputError.
JsonValue parse_json(std::string_view text, const std::string& file, std::int64_t first_line = 1);

// Reads the members of one object; every key must be taken (or ignored) before finish(), which
// refuses the unknown ones by name with a did-you-mean. Getters throw InputError with the place.
// Its functions stand in object_reader.cpp.
class ObjectReader {
 public:
  ObjectReader(const JsonValue& object, std::string file);

  bool has(std::string_view key) const;
  bool is_null(std::string_view key) const;  // present and null
  // Required members.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high);
  double number(std::string_view key, double low, double high);
  bool boolean(std::string_view key);
  std::string string(std::string_view key);
  const JsonValue& value(std::string_view key);
  std::vector<std::string> strings(std::string_view key);  // an array of strings
  // Optional members: the default when absent (null counts as absent).
  std::int64_t integer_or(std::string_view key, std::int64_t fallback, std::int64_t low,
                          std::int64_t high);
  double number_or(std::string_view key, double fallback, double low, double high);
  bool boolean_or(std::string_view key, bool fallback);
  std::string string_or(std::string_view key, std::string fallback);

  void ignore(std::string_view key);           // known to be without effect
  std::vector<std::string> remaining() const;  // keys nobody took, in order
  // Remaining members that are null or false, as writers put for what they do not use, unless they
  // look like a known one misspelt.
  void ignore_unset();
  std::vector<InputError> unknown() const;  // one per remaining key, with a did-you-mean
  void finish() const;                      // throws the first of unknown(), if any
  // An InputError about a member (or, with an empty key, about the object).
  InputError error(std::string_view key, const std::string& found_expected) const;

 private:
  const JsonValue* find(std::string_view key) const;  // nullptr: not there
  const JsonValue* take(std::string_view key);        // likewise; from now on a known key
  bool absent(std::string_view key);                  // takes it; true for null
  InputError unlike(std::string_view key, const std::string& expected) const;

  const JsonValue& object_;
  std::string file_;
  std::vector<bool> taken_;
  std::vector<std::string> known_;  // every key asked for, for the did-you-mean
};

// "found <kind and value>" for messages; long values are cut.
std::string describe(const JsonValue& value);

// The nearest of `candidates` within Damerau-Levenshtein distance 2 (3 for words over 8 letters);
// empty if none.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace shardplan
