# What `cmake --install` puts in place besides the programs (each program installs itself):
# the client library with its headers and CMake package, and the .proto files for other languages.
#
#   find_package(warmpath CONFIG REQUIRED)
#   target_link_libraries(my_proxy PRIVATE warmpath::client)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/warmpath)

add_library(warmpath::client ALIAS warmpath_client)
set_target_properties(warmpath_client PROPERTIES EXPORT_NAME client)
set_target_properties(warmpath_proto PROPERTIES EXPORT_NAME proto)

install(TARGETS warmpath_client warmpath_proto EXPORT warmpathTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY client/lib/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h")
install(DIRECTORY proto/warmpath DESTINATION ${CMAKE_INSTALL_DATADIR}/warmpath/proto
  COMPONENT development FILES_MATCHING PATTERN "*.proto")
install(EXPORT warmpathTargets NAMESPACE warmpath:: DESTINATION ${package_dir}
  COMPONENT development)

configure_package_config_file(scripts/cmake/warmpathConfig.cmake.in
  ${CMAKE_BINARY_DIR}/warmpathConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/warmpathConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/warmpathConfig.cmake ${CMAKE_BINARY_DIR}/warmpathConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)
