// The plain text between workers and their supervisor: fields name=value, separated by tabs, on one
// line. Values may hold anything; tabs, line ends and backslashes are escaped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardplan {

class Message {
 public:
  Message() = default;
  // Throws std::invalid_argument for text that add() never makes.
  explicit Message(const std::string& text);

  void add(std::string_view name, const std::string& value);
  void add(std::string_view name, std::int64_t value);
  void add(std::string_view name, const std::vector<double>& values);  // reads back equal
  std::string text() const;

  bool has(std::string_view name) const;
  // Throw std::invalid_argument where the field is missing or no number.
  const std::string& word(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  std::vector<double> numbers(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace shardplan
