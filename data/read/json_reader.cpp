// Text -> JsonValue through nlohmann_json's SAX events: every limit is checked while the text
// streams by, before a tree could grow too deep or too wide.
#include "data/read/json_reader.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "data/read/json_message.h"

namespace shardplan {

namespace {

// One string or number; also the white space between two values.
constexpr std::ptrdiff_t kMaxTokenBytes = std::ptrdiff_t{1} << 20;

class TreeBuilder;

// An input iterator that tells the builder how far the parser has read: SAX events carry no
// position.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  TreeBuilder* builder = nullptr;

  reference operator*() const { return *at; }
  CountingIterator& operator++();
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at == b.at;
  }
};

// Builds the value from the events. Throws InputError; the parser lets it pass through.
class TreeBuilder {
 public:
  using Json = nlohmann::json;

  TreeBuilder(std::string_view text, const std::string& file, std::int64_t first_line)
      : file_(file),
        consumed_(text.data()),
        event_end_(text.data()),
        counted_(text.data()),
        end_(text.data() + text.size()),
        line_(first_line) {}

  CountingIterator begin() { return {.at = consumed_, .builder = this}; }
  CountingIterator end() { return {.at = end_, .builder = this}; }
  JsonValue take_root() { return std::move(root_); }
  void consumed_to(const char* at) {
    consumed_ = at;
    if (at - event_end_ > kMaxTokenBytes) {
      refuse("found a token of more than " + std::to_string(kMaxTokenBytes) +
             " bytes, expected a shorter one");
    }
  }

  bool null() {
    add(JsonKind::kNull);
    return true;
  }
  bool boolean(bool value) {
    add(JsonKind::kBool).boolean = value;
    return true;
  }
  bool number_integer(std::int64_t value) {
    JsonValue& added = add(JsonKind::kInteger);
    added.integer = value;
    added.real = static_cast<double>(value);
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse_integer(std::to_string(value));
    }
    return number_integer(static_cast<std::int64_t>(value));
  }
  // Integers beyond 64 bits arrive here as doubles; their source text tells.
  bool number_float(double value, const std::string& source) {
    if (source.find_first_of(".eE") == std::string::npos) {
      refuse_integer(source);
    }
    add(JsonKind::kReal).real = value;
    return true;
  }
  bool string(std::string& value) {
    add(JsonKind::kString).string = std::move(value);
    return true;
  }
  bool binary(Json::binary_t&) { throw std::logic_error("JSON text has no binary values"); }
  bool start_object(std::size_t) { return open(JsonKind::kObject); }
  bool start_array(std::size_t) { return open(JsonKind::kArray); }
  bool key(std::string& name) {
    count_tokens(open_.back()->members.empty() ? 2 : 3);  // key, colon, and the comma before it
    open_.back()->members.push_back({.name = std::move(name), .value = {}});
    return true;
  }
  bool end_array() {
    count_tokens(1);
    open_.pop_back();
    return true;
  }
  bool end_object() {
    refuse_duplicates();
    return end_array();
  }
  bool parse_error(std::size_t, const std::string& last_token, const Json::exception& error);

 private:
  JsonValue& add(JsonKind kind);
  bool open(JsonKind kind);
  void count_tokens(std::int64_t num_tokens);
  void refuse_duplicates() const;
  [[noreturn]] void refuse_integer(const std::string& digits);
  [[noreturn]] void refuse(const std::string& found_expected);
  std::int64_t current_line();
  std::string current_pointer() const;
  std::string_view refused_token() const;

  const std::string& file_;
  const char* consumed_;
  const char* event_end_;  // consumed_ at the last event
  const char* counted_;    // newlines before here are in line_
  const char* end_;
  std::int64_t line_;
  std::int64_t num_tokens_ = 0;
  JsonValue root_;
  std::vector<JsonValue*> open_;  // a parent's vector does not grow while its child is open
};

CountingIterator& CountingIterator::operator++() {
  builder->consumed_to(++at);
  return *this;
}

// Line of the token just read. Numbers are read one character too far, and no token ends in a
// newline: so a newline at the very end belongs to what follows.
std::int64_t TreeBuilder::current_line() {
  const char* token_end = consumed_;
  if (token_end > counted_ && token_end[-1] == '\n') {
    --token_end;
  }
  line_ += std::count(counted_, token_end, '\n');
  counted_ = token_end;
  return line_;
}

std::string TreeBuilder::current_pointer() const {
  if (open_.empty()) {
    return "";
  }
  const JsonValue& parent = *open_.back();
  if (parent.kind == JsonKind::kArray) {
    return child_pointer(parent.pointer, std::to_string(parent.items.size()));
  }
  return parent.members.empty() ? parent.pointer
                                : child_pointer(parent.pointer, parent.members.back().name);
}

void TreeBuilder::refuse(const std::string& found_expected) {
  throw InputError(place(file_, current_line(), current_pointer()) + found_expected);
}

void TreeBuilder::refuse_integer(const std::string& digits) {
  refuse("found integer " + shown(digits, Encoding::kUnchecked) +
         ", expected one between -2^63 and 2^63 - 1");
}

void TreeBuilder::count_tokens(std::int64_t num_tokens) {
  event_end_ = consumed_;
  num_tokens_ += num_tokens;
  if (num_tokens_ > kMaxJsonTokens) {
    refuse("found more than " + std::to_string(kMaxJsonTokens) +
           " JSON tokens, expected a smaller file");
  }
}

JsonValue& TreeBuilder::add(JsonKind kind) {
  const bool after_comma = !open_.empty() && !open_.back()->items.empty();
  count_tokens(after_comma ? 2 : 1);
  std::string pointer = current_pointer();
  JsonValue* value = &root_;
  if (!open_.empty()) {
    JsonValue& parent = *open_.back();
    value = parent.kind == JsonKind::kArray ? &parent.items.emplace_back()
                                            : &parent.members.back().value;
  }
  value->kind = kind;
  value->pointer = std::move(pointer);
  value->line = current_line();
  return *value;
}

bool TreeBuilder::open(JsonKind kind) {
  if (static_cast<std::int64_t>(open_.size()) >= kMaxJsonDepth) {
    refuse("found arrays and objects nested deeper than " + std::to_string(kMaxJsonDepth) +
           ", expected at most that");
  }
  open_.push_back(&add(kind));
  return true;
}

void TreeBuilder::refuse_duplicates() const {
  const JsonValue& object = *open_.back();
  std::vector<std::pair<std::string_view, std::int64_t>> keys;  // with the line
  keys.reserve(object.members.size());
  for (const auto& [name, value] : object.members) { keys.emplace_back(name, value.line); }
  std::ranges::sort(keys);
  const auto twice = std::ranges::adjacent_find(keys, {}, &decltype(keys)::value_type::first);
  if (twice == keys.end()) {
    return;
  }
  throw InputError(place(file_, std::next(twice)->second, object.pointer) + "found key \"" +
                   shown(twice->first, Encoding::kUtf8) + "\" twice (first on line " +
                   std::to_string(twice->second) + "), expected every key once");
}

// What was read since the last event, without the separators around it. A number is read one
// character too far: that character may belong to the next token (0x10), or end this one (1e999,).
std::string_view TreeBuilder::refused_token() const {
  const std::string_view separators = " \t\r\n,:]}";
  std::string_view read(event_end_, static_cast<std::size_t>(consumed_ - event_end_));
  if (read.empty() && num_tokens_ > 0) {
    read = {consumed_ - 1, 1};
  }
  const std::size_t first = read.find_first_not_of(separators);
  if (first == std::string_view::npos) {
    return read;
  }
  return read.substr(first, read.find_last_not_of(separators) + 1 - first);
}

// The parser's sentence is `... - unexpected A; expected B`, or `... - REASON; last read: 'TOKEN'`
// from the lexer, or `... number overflow parsing 'TOKEN'`. TOKEN is not shown: it may begin with
// separators, and the text at hand says the same.
bool TreeBuilder::parse_error(std::size_t, const std::string&, const Json::exception& error) {
  const std::string found = "found " + shown(refused_token(), Encoding::kUnchecked);

  const std::string_view sentence = error.what();
  const std::size_t dash = sentence.find(" - ");
  if (dash == std::string_view::npos) {
    refuse(found + ", expected a number that a double can hold");
  }
  const std::string_view unexpected = "unexpected ";
  const std::string_view expected = "; expected ";
  std::string_view reason = sentence.substr(dash + 3);
  if (!reason.starts_with(unexpected)) {
    reason = reason.substr(0, reason.find("; last read: "));
    refuse(found + ", expected JSON (" + std::string(reason) + ")");
  }
  reason.remove_prefix(unexpected.size());
  const std::size_t semicolon = reason.find(expected);
  refuse("found " + std::string(reason.substr(0, semicolon)) + ", expected " +
         (semicolon == std::string_view::npos
              ? "a JSON value"
              : std::string(reason.substr(semicolon + expected.size()))));
}

}  // namespace

JsonValue parse_json(std::string_view text, const std::string& file, std::int64_t first_line) {
  if (static_cast<std::int64_t>(text.size()) > kMaxJsonBytes) {
    throw InputError(place(file, first_line, "") + "found " + std::to_string(text.size()) +
                     " bytes, expected at most " + std::to_string(kMaxJsonBytes));
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw InputError(place(file, first_line, "") + "found an empty text, expected JSON");
  }
  TreeBuilder builder(text, file, first_line);
  nlohmann::json::sax_parse(builder.begin(), builder.end(), &builder);
  return builder.take_root();
}

}  // namespace shardplan
