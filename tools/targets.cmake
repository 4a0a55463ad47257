# How libraries, programs and tests are made.

# Errors only with CMAKE_COMPILE_WARNING_AS_ERROR, as in continuous integration and the presets dev
# and tsan: a user's compiler may be newer than any of ours and warn of more.
add_library(warnings INTERFACE)
target_compile_options(warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion>)

# No contracted multiply-adds: the same numbers from every compiler.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

# Precompiled headers hide that a source lacks an include, and ccache, a launcher, would not know
# such sources again without settings of its own.
set(precompiled_headers ON)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(precompiled_headers OFF)
endif()
option(SHARDPLAN_PRECOMPILED_HEADERS "Compile the standard library's headers only once"
  ${precompiled_headers})

# A target's sources are compiled for the fastest code, or with FASTER_COMPILING: reading, writing
# and tests, in which the libraries' code takes the time, a quarter to a third faster.
function(shardplan_compile target)
  set(headers standard_headers)
  set(options "")
  if(FASTER_COMPILING IN_LIST ARGN)
    set(headers standard_headers_faster)
    set(options $<$<CONFIG:Release>:-O1>)
  endif()
  target_link_libraries(${target} PRIVATE warnings)
  target_compile_options(${target} PRIVATE ${options})
  if(NOT SHARDPLAN_PRECOMPILED_HEADERS)
    return()
  endif()
  if(NOT TARGET ${headers})  # one for each set of options, which must be the same
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/no_code.cpp CONTENT "")
    add_library(${headers} OBJECT ${PROJECT_BINARY_DIR}/no_code.cpp)
    target_link_libraries(${headers} PRIVATE warnings)
    target_compile_options(${headers} PRIVATE ${options})
    target_precompile_headers(${headers} PRIVATE <algorithm> <array> <cmath> <cstdint> <functional>
      <map> <optional> <span> <stdexcept> <string> <string_view> <utility> <vector>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()

# A room's library, named here with the rooms that it may include; of headers alone where `name` has
# no sources. Headers stand beside their sources.
function(shardplan_library name)
  cmake_parse_arguments(ARG "INTERFACE" "" "LINKS" ${ARGN})
  if(ARG_INTERFACE)
    add_library(${name} INTERFACE)
    target_sources(${name} INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${ARG_LINKS})
    return()
  endif()
  add_library(${name} STATIC)
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_LINKS})
  shardplan_compile(${name} ${ARG_UNPARSED_ARGUMENTS})
endfunction()
