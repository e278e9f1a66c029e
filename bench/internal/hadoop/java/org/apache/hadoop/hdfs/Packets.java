package org.apache.hadoop.hdfs;

import java.io.DataOutputStream;
import java.io.IOException;
import org.apache.hadoop.util.DataChecksum;

/** Makes packets with DFSPacket, the client's own class; it stands in its package to reach it. */
public final class Packets {
  private Packets() {}

  /**
   * Writes one packet as a Hadoop client does: chunk by chunk into a buffer
   * with room for maxChunks, then header, checksums and data in one write.
   */
  public static void write(DataOutputStream out, DataChecksum sum, int maxChunks, long offset,
      long seqno, boolean last, boolean sync, byte[] data) throws IOException {
    int bpc = sum.getBytesPerChecksum();
    int csize = sum.getChecksumSize();
    int room = org.apache.hadoop.hdfs.protocol.datatransfer.PacketHeader.PKT_MAX_HEADER_LEN;
    byte[] buf = new byte[room + maxChunks * (bpc + csize)];
    DFSPacket p = new DFSPacket(buf, maxChunks, offset, seqno, csize, last);
    byte[] crcs = new byte[maxChunks * csize];
    if (csize > 0 && data.length > 0) {
      sum.calculateChunkedSums(data, 0, data.length, crcs, 0);
    }
    int i = 0;
    for (int n = 0; n < data.length; n += bpc, i++) {
      p.writeChecksum(crcs, i * csize, csize);
      p.writeData(data, n, Math.min(bpc, data.length - n));
      p.incNumChunks();
    }
    p.setSyncBlock(sync);
    p.writeTo(out);
  }
}
