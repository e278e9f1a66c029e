package org.apache.hadoop.hdfs.server.datanode;

import org.apache.hadoop.hdfs.protocol.ExtendedBlock;

/** Reaches the datanode's block scanner; it stands in its package for that. */
public final class Scan {
  private Scan() {}

  /** Makes the scanner look at a replica soon. */
  public static void soon(DataNode node, String storageId, ExtendedBlock block) {
    if (!node.getBlockScanner().isEnabled()) {
      throw new IllegalStateException("the block scanner is off");
    }
    node.getBlockScanner().markSuspectBlock(storageId, block);
  }
}
