#include "tools/validate/journal.h"

#include <array>
#include <cstdint>

#include "data/read/input_error.h"
#include "tools/report/output.h"
#include "tools/report/validate_rows.h"
#include "tools/report/version.h"

namespace shardplan {
namespace {

// A record: {"key":"<32 digits>","result":<the result line>}
constexpr std::string_view kHead = R"({"key":")";
constexpr std::string_view kMiddle = R"(","result":)";
constexpr std::size_t kKeyDigits = 32;

// FNV-1a (Fowler, Noll, Vo), 64 bits, from two starts. Not against enemies: the file is the user's.
std::uint64_t hash_of(const std::string& text, std::uint64_t start) {
  constexpr std::uint64_t kPrime = 1099511628211U;
  std::uint64_t hash = 14695981039346656037U ^ start;
  for (const char letter : text) { hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime; }
  return hash;
}

std::string key_of(const std::string& identity) {
  const std::string text = std::string(kVersionText) + "\n" + identity;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string key;
  for (const std::uint64_t start : {std::uint64_t{0}, std::uint64_t{0x9e3779b97f4a7c15U}}) {
    const std::uint64_t hash = hash_of(text, start);
    for (unsigned shift = 0; shift < 64; shift += 4) { key += kDigits[hash >> shift & 15U]; }
  }
  return key;
}

Journal opened(const std::string& path) {
  try {
    return Journal(path);
  } catch (const JournalError& error) {
    throw EnvironmentError(std::string("journal: ") + error.what());
  }
}

}  // namespace

ValidateJournal::ValidateJournal(const std::string& path, bool resumes) : journal_(opened(path)) {
  const std::string& rest = journal_.incomplete();
  if (!resumes && !(journal_.records().empty() && rest.empty())) {
    throw InputError(path + ": found " + std::to_string(journal_.records().size()) + " records" +
                     (rest.empty() ? "" : " and an incomplete line") +
                     ", expected an empty journal, or --resume to go on with it");
  }
  std::int64_t line = 1;
  const auto require = [&](bool is_record) {
    if (!is_record) {
      throw InputError(path + ":" + std::to_string(line) +
                       ": found no record of validate, expected a journal that it wrote");
    }
  };
  for (const std::string& record : journal_.records()) {
    const std::size_t middle = kHead.size() + kKeyDigits;
    require(record.starts_with(kHead) && record.size() > middle &&
            record.compare(middle, kMiddle.size(), kMiddle) == 0 && record.ends_with('}'));
    const std::size_t begin = middle + kMiddle.size();
    const std::string result = record.substr(begin, record.size() - 1 - begin);
    require(is_result_line(result));
    results_[record.substr(kHead.size(), kKeyDigits)].push_back(result + "\n");
    ++line;
  }
  if (!rest.empty()) {
    // Behind records anything may be left of one; alone it must look like its beginning.
    require(line > 1 || rest.substr(0, kHead.size()) == kHead.substr(0, rest.size()));
    print_message(path + ": the last record was cut off; its run is repeated");
  }
}

std::optional<std::string> ValidateJournal::finished(const std::string& identity) {
  const auto found = results_.find(key_of(identity));
  if (found == results_.end() || found->second.empty()) {
    return std::nullopt;
  }
  std::string result = found->second.front();
  found->second.erase(found->second.begin());
  return result;
}

void ValidateJournal::append(const std::string& identity, const std::string& result_line) {
  const std::string result = result_line.substr(0, result_line.find('\n'));
  try {
    journal_.append(std::string(kHead) + key_of(identity) + std::string(kMiddle) + result + "}");
  } catch (const JournalError& error) {
    throw EnvironmentError(std::string("journal: ") + error.what());
  }
}

}  // namespace shardplan
