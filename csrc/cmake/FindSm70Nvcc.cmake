# Finds an nvcc that makes sm_70 code: release 9 to 12, whose own ptxas it also gets to run.
#
#   SM70_NVCC           the compiler, empty when there is none
#   SM70_NVCC_RELEASE   its release, as 11.8
#   SM70_NVCC_REJECTED  one line per nvcc found and not taken, with the reason
#
# CMAKE_CUDA_COMPILER (or -D…), then $CUDACXX, is the only candidate where it is set; otherwise every
# nvcc in PATH, in /usr/local/cuda*/bin and in /usr/bin is tried in turn.

# A PATH whose first ptxas is another toolkit's breaks nvcc ("Value 'sm_70' is not defined"), so it
# always runs with its own directory in front.
function(volta_nvcc_path nvcc out)
  get_filename_component(dir "${nvcc}" DIRECTORY)
  set(${out} "${dir}:$ENV{PATH}" PARENT_SCOPE)
endfunction()

# Sets `reason` to why this nvcc cannot be taken, empty if it can, and `release`.
function(volta_try_nvcc nvcc reason release)
  volta_nvcc_path("${nvcc}" path)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "PATH=${path}" "${nvcc}" --version
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${reason} "is no nvcc that runs" PARENT_SCOPE)
    return()
  endif()
  set(version "${CMAKE_MATCH_1}")
  set(${release} "${version}" PARENT_SCOPE)
  if(version VERSION_LESS 9)
    set(${reason} "release ${version} is too old: sm_70 needs 9.0 or later" PARENT_SCOPE)
    return()
  elseif(version VERSION_GREATER_EQUAL 13)
    set(${reason} "release ${version} no longer makes sm_70: the last is 12.9" PARENT_SCOPE)
    return()
  endif()

  set(host_compiler)
  if(CMAKE_CUDA_HOST_COMPILER)
    set(host_compiler -ccbin "${CMAKE_CUDA_HOST_COMPILER}")
  endif()
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/sm70_probe.cu")
  file(WRITE "${probe}" "#include <cmath>\n__global__ void probe() {}\n")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "PATH=${path}" "${nvcc}" ${host_compiler} -std=c++14
            -gencode arch=compute_70,code=sm_70 -c "${probe}" -o "${probe}.o"
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE failed)
  if(NOT failed)
    set(${reason} "" PARENT_SCOPE)
  elseif(text MATCHES "'?sm_70'? is not defined")
    set(${reason} "release ${version} ran the ptxas of another toolkit, which lacks sm_70: put the \
directory of release ${version}'s own ptxas first in PATH" PARENT_SCOPE)
  elseif(text MATCHES "unsupported GNU version")
    set(${reason} "release ${version} does not take this g++: install an older one and pass \
-DCMAKE_CUDA_HOST_COMPILER=g++-11" PARENT_SCOPE)
  else()
    string(STRIP "${text}" text)
    set(${reason} "release ${version} cannot compile for sm_70: ${text}" PARENT_SCOPE)
  endif()
endfunction()

if(CMAKE_CUDA_COMPILER)
  set(candidates "${CMAKE_CUDA_COMPILER}")
elseif(DEFINED ENV{CUDACXX})
  set(candidates "$ENV{CUDACXX}")
else()
  string(REPLACE ":" ";" dirs "$ENV{PATH}")
  file(GLOB toolkits /usr/local/cuda*/bin)
  set(candidates)
  foreach(dir IN LISTS dirs toolkits ITEMS /usr/bin)
    if(EXISTS "${dir}/nvcc")
      list(APPEND candidates "${dir}/nvcc")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES candidates)
endif()

set(SM70_NVCC "")
set(SM70_NVCC_REJECTED "")
foreach(candidate IN LISTS candidates)
  volta_try_nvcc("${candidate}" reason SM70_NVCC_RELEASE)
  if(NOT reason)
    set(SM70_NVCC "${candidate}")
    break()
  endif()
  string(APPEND SM70_NVCC_REJECTED "\n  ${candidate}: ${reason}")
endforeach()
