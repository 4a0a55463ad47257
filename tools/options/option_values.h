// The values of options: counts, sizes, numbers, lists and words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

// One integer within [low, high], as count_of reads it; `place` opens the message ("--tp").
std::int64_t parse_count(const std::string& word, std::int64_t low, std::int64_t high,
                         const std::string& place);
// Bytes within [low, high]: 80GiB, 79.6GiB, 80GB, "80 gb", 512MiB, or plain bytes.
std::int64_t parse_bytes(const std::string& word, std::int64_t low, std::int64_t high,
                         const std::string& place);
// A decimal number within [low, high]; behind it K, M, B (or G) and T are thousand to 10^12.
double parse_number(const std::string& word, double low, double high, const std::string& place);
// "a,b,c" split at commas; empty pieces are refused.
std::vector<std::string> parse_list(const std::string& word, const std::string& place);
// The choice that the word is, by whatever capitals, with '-' for '_', or as frameworks spell it,
// as bfloat16 for bf16; else InputError.
std::string parse_choice(const std::string& word, const std::vector<std::string>& choices,
                         const std::string& place);

}  // namespace shardplan
