#include "data/time/constants.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "data/read/library.h"

namespace shardplan {
namespace {

std::size_t bytes_of_member(const TimeConstant& constant) {
  return std::visit(
      [](auto member) {
        return sizeof(std::remove_reference_t<decltype(std::declval<TimeConstants&>().*member)>);
      },
      constant.member);
}

TEST_CASE("every constant of the time model has one name, and every name one constant") {
  std::size_t named_bytes = 0;
  for (const TimeConstant& constant : kTimeConstants) {
    CAPTURE(constant.name);
    CHECK(std::ranges::count(kTimeConstants, constant.name, &TimeConstant::name) == 1);
    CHECK(std::ranges::count(kTimeConstants, constant.member, &TimeConstant::member) == 1);
    named_bytes += bytes_of_member(constant);
  }
  CHECK(named_bytes == sizeof(TimeConstants));
}

TEST_CASE("names of constants end in their unit, where they have one that names can carry") {
  for (const TimeConstant& constant : kTimeConstants) {
    CAPTURE(constant.name);
    const std::string_view name = constant.name;
    CHECK(name.ends_with("_bytes_per_s") == (constant.unit == "bytes/s"));
    CHECK(name.ends_with("_bytes") == (constant.unit == "bytes"));
    if (name.ends_with("_share")) {
      CHECK(constant.unit.empty());
    }
  }
}

TEST_CASE("constants are what their file says, to the last bit") {
  const Library library;
  const TimeConstants& constants = *library.time_constants();
  CHECK(constants.gemm_share == 0.72);
  CHECK(constants.deep_ep_row_s == 14.3e-9);
  CHECK(constants.fused_choice_in_groups.forward_score_s == 49e-12);
  CHECK(constants.attention_backward_share.back().value == 0.587);
}

TEST_CASE("every constant has an origin and a source") {
  const Library library;
  const Provenances& provenances = library.time_constants_file().provenances;
  CHECK(provenances.size() == kTimeConstants.size());
  for (const TimeConstant& constant : kTimeConstants) {
    CAPTURE(constant.name);
    REQUIRE(provenances.contains(constant.name));
    CHECK_FALSE(provenances.find(constant.name)->second.source.empty());
  }
}

TEST_CASE("every GPU and cluster of a library has its constants") {
  const Library library;
  for (const std::string& name : library.gpu_names()) {
    CHECK(library.gpu(name).constants == library.time_constants());
  }
  for (const std::string& name : library.cluster_names()) {
    CHECK(library.cluster(name).gpu.constants == library.time_constants());
  }
}

}  // namespace
}  // namespace shardplan
