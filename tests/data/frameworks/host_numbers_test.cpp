#include "data/frameworks/host_numbers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <span>

#include "data/read/library.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/host_table.h"

namespace shardplan {
namespace {

TEST_CASE("a profile has a table of hosts where its framework adds up numbers of one") {
  const Library library;
  for (const std::string& name : library.framework_names()) {
    CAPTURE(name);
    const FrameworkProfile profile = library.framework(name);
    CHECK((profile.host != nullptr) == !framework_of(profile).kernels.host.numbers.empty());
  }
}

TEST_CASE("seconds of hosts are the microseconds of the file, and of these what a factor leaves") {
  const Library library;
  const FrameworkProfile megatron = library.framework("megatron");
  CHECK(megatron.host->eager.layer.forward_s == 830 * 1e-6);
  CHECK(megatron.host->eager.layer.backward_s == 1330 * 1e-6);
  CHECK(megatron.host->eager.checkpoint_s == 700 * 1e-6);
  CHECK(megatron.host->eager.checkpoint_host_slowdown == 1.62);
  CHECK(megatron.host->eager.host_slowdown == 1);
  const FrameworkProfile titan = library.framework("torchtitan");
  CHECK(titan.host->eager.layer.forward_s == 0.65 * 1880 * 1e-6);
  CHECK(titan.host->compiled.layer.forward_s == 0.65 * 900 * 1e-6);
  CHECK(titan.host->compiled.both.forward_s == 0);
}

TEST_CASE("a version's host is its base's, but for the numbers that it states itself") {
  const Library library;
  CHECK(library.framework("nanotron@v0.4").host->eager.layer.forward_s ==
        library.framework("nanotron").host->eager.layer.forward_s);
  const Library fixtures(SHARDPLAN_SOURCE_DIR "/tests/malformed");
  const FrameworkProfile version = fixtures.framework("host_version");
  CHECK(version.host->eager.update_s == 100 * 1e-6);
  CHECK(version.host->eager.layer.backward_s == 2600 * 1e-6);
  CHECK(fixtures.framework("host_well_formed").host->eager.update_s == 900 * 1e-6);
}

TEST_CASE("a profile says where each number of its host comes from, a version what it states") {
  const Library library;
  for (const std::string& name : library.framework_names()) {
    CAPTURE(name);
    const ProfileFile& file = library.profile(name);
    const HostLaunches& host = framework_of(file.profile).kernels.host;
    CHECK(file.host_numbers.size() == host.numbers.size() + host.compiled_numbers.size());
  }
  const Library fixtures(SHARDPLAN_SOURCE_DIR "/tests/malformed");
  const Provenances version = fixtures.profile("host_version").host_numbers;
  const Provenances base = fixtures.profile("host_well_formed").host_numbers;
  CHECK(version.at("host/layer").source == base.at("host/layer").source);
  CHECK(version.at("host/update").origin == Origin::kMeasured);
  CHECK(base.at("host/update").origin == Origin::kFitted);
}

TEST_CASE("a framework names each number of its host once") {
  for (const Framework& framework : kFrameworks) {
    const HostLaunches& host = framework.kernels.host;
    for (const std::span<const HostNumber> numbers : {host.numbers, host.compiled_numbers}) {
      for (const HostNumber& number : numbers) {
        CAPTURE(number.name);
        CHECK(std::ranges::count(numbers, number.name, &HostNumber::name) == 1);
        CHECK(std::ranges::count(numbers, number.member, &HostNumber::member) == 1);
      }
    }
  }
}

}  // namespace
}  // namespace shardplan
